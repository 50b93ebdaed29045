fn job(&self, pool: &PgPool) -> Result<&str, Error> {
    Ok("")
}
::core::compile_error! {
    "a fenced job must be an `async fn`: add `async`"
}
::core::compile_error! {
    "a fenced job is a free function: take what it needs of `self` as parameters"
}
::core::compile_error! {
    "a fenced job cannot have attributes on its parameters: put them on the function"
}
::core::compile_error! {
    "a fenced job cannot return an elided lifetime: return an owned value, or name the lifetime of an argument"
}
