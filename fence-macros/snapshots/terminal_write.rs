/// Ends the run.
pub async fn finish<DB: Backend>(
    tx: &mut FencedTx<'_, DB>,
    run: &Run,
    note: impl Display,
) -> Result<Written, Error> {
    const _: () = {
        fn _check<'__arg0, '__arg1, '__arg2, DB: Backend, ImplDisplay0: Display>() {
            ::fence_runtime::__private::terminal_tx::<FencedTx<'__arg1, DB>>();
            ::fence_runtime::__private::proves_write::<Result<Written, Error>>();
            {
                use ::fence_runtime::__private::{admit, probe};
                admit(probe::<Run>().verdict());
                admit(probe::<ImplDisplay0>().verdict());
            }
        }
    };
    {
        let token = tx.fence_token();
        tx.terminal(query(run, token)).await
    }
}
