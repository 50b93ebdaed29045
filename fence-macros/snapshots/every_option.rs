fn job() -> impl crate::fence::__private::FencedJob<
    Db = <FenceCtx<Sqlite> as crate::fence::__private::Context>::Db,
    Lease = <FenceCtx<Sqlite> as crate::fence::__private::Context>::Lease,
    Output = <Result<(), Error> as crate::fence::__private::Fallible>::Ok,
    Error = <Result<(), Error> as crate::fence::__private::Fallible>::Err,
> {
    use crate::fence::__private as __fence;
    #[allow(clippy::unused_async)]
    async fn __fenced_job(ctx: &FenceCtx<Sqlite>) -> Result<(), Error> {
        Ok(())
    }
    #[allow(non_camel_case_types)]
    struct __Fenced_job();
    impl __fence::Body for __Fenced_job {
        type Context = FenceCtx<Sqlite>;
        type Lease = <FenceCtx<Sqlite> as __fence::Context>::Lease;
        type Returns = Result<(), Error>;
        fn name(&self) -> &'static ::core::primitive::str {
            ::core::concat!(::core::module_path!(), "::", "job")
        }
        fn lease(&self) -> Self::Lease {
            __fence::untyped("a")
        }
        fn options(&self) -> __fence::LeaseOptions {
            __fence::LeaseOptions::new()
                .ttl(__fence::millis(30000u64))
                .renew(__fence::millis(5000u64))
                .wait(__fence::millis(60000u64))
                .max_runtime(__fence::millis(7200000u64))
                .on_lost(__fence::OnLost::Signal)
        }
        async fn run(self, ctx: &Self::Context) -> Self::Returns {
            __fenced_job(ctx).await
        }
    }
    __fence::Job(__Fenced_job())
}
