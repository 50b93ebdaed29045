//! Expansions as text, so that a change of them is seen in review. `UPDATE_SNAPSHOTS=1 cargo test -p fence-macros`
//! writes them anew.

use std::{env, fs, path::PathBuf};

use proc_macro2::TokenStream;

type Attribute = fn(TokenStream, TokenStream) -> TokenStream;

const FENCED_JOB: Attribute = crate::job::fenced_job;
const TERMINAL_WRITE: Attribute = crate::terminal::terminal_write;

fn check(name: &str, attribute: Attribute, args: &str, item: &str) {
    let expansion = attribute(args.parse().unwrap(), item.parse().unwrap());
    let file = syn::parse2(expansion.clone()).unwrap_or_else(|error| panic!("{error} in {expansion}"));
    let found = prettyplease::unparse(&file);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(name).with_extension("rs");
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    assert!(found == expected, "{} differs:\n{found}", path.display());
}

#[test]
fn two_arguments() {
    check(
        "two_arguments",
        FENCED_JOB,
        r#"lease = "admin:reconciliation", ttl = "30s""#,
        "/// Compares.
        pub async fn reconcile(ctx: &FenceCtx<Postgres>, deps: &Deps, run: i64) -> anyhow::Result<Report> {
            let report = deps.compare(run).await?;
            Ok(report)
        }",
    );
}

#[test]
fn every_option() {
    check(
        "every_option",
        FENCED_JOB,
        r#"lease = "a", ttl = "30s", renew = "5s", wait = "1m", max_runtime = "2h", on_lost = "signal", crate = "crate::fence""#,
        "async fn job(ctx: &FenceCtx<Sqlite>) -> Result<(), Error> { Ok(()) }",
    );
}

#[test]
fn generic_over_everything() {
    check(
        "generic_over_everything",
        FENCED_JOB,
        r#"lease = "a""#,
        "#[must_use]
        #[expect(clippy::too_many_arguments)]
        #[inline]
        pub(crate) async fn job<'a, DB: Backend + AppSql, const N: usize>(
            ctx: &FenceCtx<DB>,
            names: &'a [String; N],
            (from, to): (i64, i64),
            mut rows: Vec<Row<'_>>,
            each: impl Fn(&str) -> bool + Send,
            sources: Vec<impl Iterator<Item = &str> + Send>,
        ) -> Result<&'a str, DB::Error>
        where
            i64: sqlx::Type<DB>,
        {
            #![allow(unused)]
            todo!()
        }",
    );
}

#[test]
fn terminal_write() {
    check(
        "terminal_write",
        TERMINAL_WRITE,
        "",
        "/// Ends the run.
        pub async fn finish<DB: Backend>(
            tx: &mut FencedTx<'_, DB>,
            run: &Run,
            note: impl Display,
        ) -> Result<Written, Error> {
            let token = tx.fence_token();
            tx.terminal(query(run, token)).await
        }",
    );
}

#[test]
fn mistakes_in_options_leave_a_job() {
    check(
        "mistakes_in_options_leave_a_job",
        FENCED_JOB,
        r#"leese = "a", ttl = "1""#,
        "async fn job(ctx: &FenceCtx<Sqlite>) -> Result<(), Error> { Ok(()) }",
    );
}

#[test]
fn mistakes_in_the_signature_leave_the_function() {
    check(
        "mistakes_in_the_signature_leave_the_function",
        FENCED_JOB,
        r#"lease = "a""#,
        "fn job(&self, #[allow(unused)] pool: &PgPool) -> Result<&str, Error> { Ok(\"\") }",
    );
}

#[test]
fn a_context_as_executor_is_replaced() {
    check(
        "a_context_as_executor_is_replaced",
        FENCED_JOB,
        r#"lease = "a""#,
        "async fn job(ctx: &FenceCtx<Sqlite>) -> sqlx::Result<()> {
            sqlx::query(\"UPDATE x\").execute(ctx).await?;
            Ok(())
        }",
    );
}

#[test]
fn anything_but_a_function_is_left_alone() {
    check("anything_but_a_function_is_left_alone", FENCED_JOB, r#"lease = "a""#, "struct Job { x: u8 }");
}

#[test]
fn a_template() {
    check(
        "a_template",
        FENCED_JOB,
        r#"lease = "tenant:{tenant_id}:{r#type}""#,
        "async fn bill(ctx: &FenceCtx<Sqlite>, tenant_id: i64, r#type: &str) -> Result<(), Error> { Ok(()) }",
    );
}
