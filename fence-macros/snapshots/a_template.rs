fn bill<'__arg0>(
    tenant_id: i64,
    r#type: &'__arg0 str,
) -> impl ::fence_runtime::__private::FencedJob<
    Db = <FenceCtx<Sqlite> as ::fence_runtime::__private::Context>::Db,
    Lease = <FenceCtx<Sqlite> as ::fence_runtime::__private::Context>::Lease,
    Output = <Result<(), Error> as ::fence_runtime::__private::Fallible>::Ok,
    Error = <Result<(), Error> as ::fence_runtime::__private::Fallible>::Err,
> {
    use ::fence_runtime::__private as __fence;
    #[allow(clippy::unused_async)]
    async fn __fenced_bill(
        ctx: &FenceCtx<Sqlite>,
        tenant_id: i64,
        r#type: &str,
    ) -> Result<(), Error> {
        Ok(())
    }
    #[allow(non_camel_case_types)]
    struct __Fenced_bill<'__arg0>(i64, &'__arg0 str);
    impl<'__arg0> __fence::Body for __Fenced_bill<'__arg0> {
        type Context = FenceCtx<Sqlite>;
        type Lease = <FenceCtx<Sqlite> as __fence::Context>::Lease;
        type Returns = Result<(), Error>;
        fn name(&self) -> &'static ::core::primitive::str {
            ::core::concat!(::core::module_path!(), "::", "bill")
        }
        fn lease(&self) -> Self::Lease {
            __fence::template(
                &[
                    __fence::Piece::Text("tenant:"),
                    __fence::value("tenant_id", &self.0),
                    __fence::Piece::Text(":"),
                    __fence::value("type", &self.1),
                ],
            )
        }
        fn options(&self) -> __fence::LeaseOptions {
            __fence::LeaseOptions::new()
        }
        async fn run(self, ctx: &Self::Context) -> Self::Returns {
            __fenced_bill(ctx, self.0, self.1).await
        }
    }
    __fence::Job(__Fenced_bill(tenant_id, r#type))
}
