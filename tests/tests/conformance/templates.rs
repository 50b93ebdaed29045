//! A lease for each value of an argument: `lease = "tenant:{tenant}:billing"`.

use std::fmt;

use fence_runtime::{Backend, Error, ErrorKind, Fence, FenceCtx, FencedJob, RunError, fenced_job};
use fence_tests::{conformance, servers::TestDb, stepper::Gate};

conformance! {
    each_value_has_a_lease_of_its_own,
    what_makes_no_name_is_refused_and_nothing_is_sent,
}

#[fenced_job(lease = "tenant:{tenant}:{{{r#type}}}")]
async fn bill<DB: Backend>(
    ctx: &FenceCtx<DB>,
    tenant: impl fmt::Display + Send,
    r#type: &str,
    held: Option<&Gate>,
) -> Result<String, Error> {
    _ = (tenant, r#type);
    if let Some(held) = held {
        held.stop().await;
    }
    Ok(format!("{} {}", ctx.lease_name(), ctx.fence_token()))
}

async fn each_value_has_a_lease_of_its_own<D: TestDb>(db: D) {
    let fence: Fence<D::Db> = db.fence().await;
    let held = Gate::new("tenant 1 is being billed");
    let first = fence.run(bill(1, "a", Some(&held)));
    let others = async {
        held.reached().await;
        assert_eq!(fence.run(bill(2, "a", None)).await.unwrap(), "tenant:2:{a} 1");
        assert_eq!(fence.run(bill(1, "b", None)).await.unwrap(), "tenant:1:{b} 1");
        let error = fence.run(bill("1", "a", None)).await.unwrap_err();
        assert!(error.is_contended() && error.to_string().contains("\"tenant:1:{a}\""), "{error}");
        held.open();
    };
    let (first, ()) = tokio::join!(first, others);
    assert_eq!(first.unwrap(), "tenant:1:{a} 1");
    assert_eq!(fence.run(bill(1, "a", None)).await.unwrap(), "tenant:1:{a} 2");
}

struct Fails;

impl fmt::Display for Fails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("half")?;
        Err(fmt::Error)
    }
}

async fn what_makes_no_name_is_refused_and_nothing_is_sent<D: TestDb>(db: D) {
    async fn refused<J: FencedJob<Output = String, Error = Error>>(fence: &Fence<J::Db>, job: J, says: &str) {
        let RunError::Fence(error) = fence.run(job).await.unwrap_err() else { panic!("{says}") };
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(says), "{error}");
    }
    let fence: Fence<D::Db> = db.fence().await;
    refused(&fence, bill("", "a", None), "the value of `{tenant}` is empty").await;
    refused(&fence, bill(1, "", None), "the value of `{type}` is empty").await;
    refused(&fence, bill("a\nb", "a", None), "control character '\\n'").await;
    refused(&fence, bill("a\0b", "a", None), "control character '\\0'").await;
    refused(&fence, bill("x".repeat(180), "a", None), "has 191 bytes").await;
    refused(&fence, bill(Fails, "a", None), "the value of `{tenant}` is empty").await;
    assert!(fence.leases().await.unwrap().is_empty());
    // A long one that just fits, and one that is no name alone.
    assert!(fence.run(bill("x".repeat(179), "a", None)).await.is_ok());
    assert!(fence.run(bill(" ", "a", None)).await.is_ok());
}
