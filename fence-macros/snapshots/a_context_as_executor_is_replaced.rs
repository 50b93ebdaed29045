fn job() -> impl ::fence_runtime::__private::FencedJob<
    Db = <FenceCtx<Sqlite> as ::fence_runtime::__private::Context>::Db,
    Lease = <FenceCtx<Sqlite> as ::fence_runtime::__private::Context>::Lease,
    Output = <sqlx::Result<()> as ::fence_runtime::__private::Fallible>::Ok,
    Error = <sqlx::Result<()> as ::fence_runtime::__private::Fallible>::Err,
> {
    use ::fence_runtime::__private as __fence;
    #[allow(clippy::unused_async)]
    async fn __fenced_job(ctx: &FenceCtx<Sqlite>) -> sqlx::Result<()> {
        sqlx::query("UPDATE x")
            .execute(
                ::core::compile_error!(
                    "a job's context is not an executor: write in `ctx.transaction(async |tx| …)` and pass `tx.executor()`, read through `ctx.read()`, or give a single statement to `ctx.execute(query)`"
                ),
            )
            .await?;
        Ok(())
    }
    #[allow(non_camel_case_types)]
    struct __Fenced_job();
    impl __fence::Body for __Fenced_job {
        type Context = FenceCtx<Sqlite>;
        type Lease = <FenceCtx<Sqlite> as __fence::Context>::Lease;
        type Returns = sqlx::Result<()>;
        fn name(&self) -> &'static ::core::primitive::str {
            ::core::concat!(::core::module_path!(), "::", "job")
        }
        fn lease(&self) -> Self::Lease {
            __fence::untyped("a")
        }
        fn options(&self) -> __fence::LeaseOptions {
            __fence::LeaseOptions::new()
        }
        async fn run(self, ctx: &Self::Context) -> Self::Returns {
            __fenced_job(ctx).await
        }
    }
    __fence::Job(__Fenced_job())
}
