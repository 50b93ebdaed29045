#[must_use]
#[allow(clippy::too_many_arguments)]
pub(crate) fn job<'__arg0, '__arg1, 'a, DB: Backend + AppSql, const N: usize>(
    names: &'a [String; N],
    arg1: (i64, i64),
    rows: Vec<Row<'__arg0>>,
    each: impl Fn(&str) -> bool + Send,
    sources: Vec<impl Iterator<Item = &'__arg1 str> + Send>,
) -> impl ::fence_runtime::__private::FencedJob<
    Db = <FenceCtx<DB> as ::fence_runtime::__private::Context>::Db,
    Lease = <FenceCtx<DB> as ::fence_runtime::__private::Context>::Lease,
    Output = <Result<&'a str, DB::Error> as ::fence_runtime::__private::Fallible>::Ok,
    Error = <Result<&'a str, DB::Error> as ::fence_runtime::__private::Fallible>::Err,
>
where
    i64: sqlx::Type<DB>,
{
    use ::fence_runtime::__private as __fence;
    #[allow(clippy::unused_async)]
    #[expect(clippy::too_many_arguments)]
    #[inline]
    async fn __fenced_job<'a, DB: Backend + AppSql, const N: usize>(
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
    }
    #[allow(non_camel_case_types)]
    struct __Fenced_job<
        '__arg0,
        '__arg1,
        'a,
        DB: Backend + AppSql,
        const N: usize,
        ImplFn0: Fn(&str) -> bool + Send,
        ImplIterator1: Iterator<Item = &'__arg1 str> + Send,
    >(
        &'a [String; N],
        (i64, i64),
        Vec<Row<'__arg0>>,
        ImplFn0,
        Vec<ImplIterator1>,
        ::core::marker::PhantomData<
            fn() -> (
                &'__arg0 (),
                &'__arg1 (),
                &'a (),
                *const DB,
                *const ImplFn0,
                *const ImplIterator1,
            ),
        >,
    )
    where
        i64: sqlx::Type<DB>;
    impl<
        '__arg0,
        '__arg1,
        'a,
        DB: Backend + AppSql,
        const N: usize,
        ImplFn0: Fn(&str) -> bool + Send,
        ImplIterator1: Iterator<Item = &'__arg1 str> + Send,
    > __fence::Body for __Fenced_job<'__arg0, '__arg1, 'a, DB, N, ImplFn0, ImplIterator1>
    where
        i64: sqlx::Type<DB>,
    {
        type Context = FenceCtx<DB>;
        type Lease = <FenceCtx<DB> as __fence::Context>::Lease;
        type Returns = Result<&'a str, DB::Error>;
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
            {
                use __fence::{admit, probe};
                admit(probe::<String>().verdict());
                admit(
                    probe::<Vec<Row<'__arg0>>>().verdict()
                        | probe::<Row<'__arg0>>().verdict(),
                );
                admit(probe::<ImplFn0>().verdict());
                admit(
                    probe::<Vec<ImplIterator1>>().verdict()
                        | probe::<ImplIterator1>().verdict(),
                );
            }
            __fenced_job::<DB, N>(ctx, self.0, self.1, self.2, self.3, self.4).await
        }
    }
    __fence::Job(
        __Fenced_job::<
            DB,
            N,
            _,
            _,
        >(names, arg1, rows, each, sources, ::core::marker::PhantomData),
    )
}
