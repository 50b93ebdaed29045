struct Job {
    x: u8,
}
::core::compile_error! {
    "`#[fenced_job]` goes on a free `async fn` with a body"
}
