/// Compares.
pub fn reconcile<'__arg0>(
    deps: &'__arg0 Deps,
    run: i64,
) -> impl ::fence_runtime::__private::FencedJob<
    Db = <FenceCtx<Postgres> as ::fence_runtime::__private::Context>::Db,
    Lease = <FenceCtx<Postgres> as ::fence_runtime::__private::Context>::Lease,
    Output = <anyhow::Result<Report> as ::fence_runtime::__private::Fallible>::Ok,
    Error = <anyhow::Result<Report> as ::fence_runtime::__private::Fallible>::Err,
> {
    use ::fence_runtime::__private as __fence;
    #[allow(clippy::unused_async)]
    async fn __fenced_reconcile(
        ctx: &FenceCtx<Postgres>,
        deps: &Deps,
        run: i64,
    ) -> anyhow::Result<Report> {
        let report = deps.compare(run).await?;
        Ok(report)
    }
    #[allow(non_camel_case_types)]
    struct __Fenced_reconcile<'__arg0>(&'__arg0 Deps, i64);
    impl<'__arg0> __fence::Body for __Fenced_reconcile<'__arg0> {
        type Context = FenceCtx<Postgres>;
        type Lease = <FenceCtx<Postgres> as __fence::Context>::Lease;
        type Returns = anyhow::Result<Report>;
        fn name(&self) -> &'static ::core::primitive::str {
            ::core::concat!(::core::module_path!(), "::", "reconcile")
        }
        fn lease(&self) -> Self::Lease {
            __fence::untyped("admin:reconciliation")
        }
        fn options(&self) -> __fence::LeaseOptions {
            __fence::LeaseOptions::new().ttl(__fence::millis(30000u64))
        }
        async fn run(self, ctx: &Self::Context) -> Self::Returns {
            {
                use __fence::{admit, probe};
                admit(probe::<Deps>().verdict());
            }
            __fenced_reconcile(ctx, self.0, self.1).await
        }
    }
    __fence::Job(__Fenced_reconcile(deps, run))
}
