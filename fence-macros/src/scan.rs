//! One mistake in bodies that deserves better words than the compiler's, whose advice there is to take a pool:
//! `sqlx::query(…).execute(ctx)`.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::quote_spanned;
use syn::{FnArg, Pat};

use crate::item::Item;

const FINISHERS: &[&str] =
    &["execute", "execute_many", "fetch", "fetch_many", "fetch_all", "fetch_one", "fetch_optional"];

/// Refuses a query in the body that is given the first parameter as its executor.
pub(crate) fn refuse_as_executor(item: &mut Item, message: &str) {
    if let Some(FnArg::Typed(parameter)) = item.sig.inputs.first()
        && let Pat::Ident(handle) = &*parameter.pat
    {
        let statements = std::mem::take(&mut item.body.statements);
        item.body.statements = replace(statements, &handle.ident, message);
    }
}

/// Puts `message` in the place of `handle` wherever a query is given it as its executor. Everything else stays.
///
/// Only chains that show that they are a query count: `steps.execute(ctx)` is somebody's own method.
fn replace(body: TokenStream, handle: &Ident, message: &str) -> TokenStream {
    let mut out: Vec<TokenTree> = Vec::new();
    for token in body {
        let token = match token {
            TokenTree::Group(group) => {
                let inner = match given(&group, handle) {
                    Some(given) if finishes_query(&out) => {
                        quote_spanned!(given.span()=> ::core::compile_error!(#message))
                    }
                    _ => replace(group.stream(), handle, message),
                };
                let mut replaced = Group::new(group.delimiter(), inner);
                replaced.set_span(group.span());
                TokenTree::Group(replaced)
            }
            token => token,
        };
        out.push(token);
    }
    out.into_iter().collect()
}

/// `(ctx)`, `(&ctx)`, `(&mut *tx)`: the handle in there.
fn given(arguments: &Group, handle: &Ident) -> Option<Ident> {
    if arguments.delimiter() != Delimiter::Parenthesis {
        return None;
    }
    let is_prefix = |token: &TokenTree| match token {
        TokenTree::Punct(punct) => matches!(punct.as_char(), '&' | '*'),
        TokenTree::Ident(ident) => ident == "mut",
        _ => false,
    };
    let mut rest = arguments.stream().into_iter().skip_while(is_prefix);
    match (rest.next(), rest.next()) {
        (Some(TokenTree::Ident(ident)), None) if ident == *handle => Some(ident),
        _ => None,
    }
}

/// Whether the tokens end in a query and `.execute` or one of its kind.
fn finishes_query(before: &[TokenTree]) -> bool {
    let [chain @ .., TokenTree::Punct(dot), TokenTree::Ident(method)] = before else { return false };
    if dot.as_char() != '.' || !FINISHERS.iter().any(|finisher| method == finisher) {
        return false;
    }
    // Backwards to where the chain begins: two words in a row, or an operator, end it.
    let (mut after_word, mut angle_depth) = (false, 0_i32);
    for token in chain.iter().rev() {
        match token {
            TokenTree::Ident(_) if after_word && angle_depth == 0 => return false,
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                if angle_depth == 0 && (name.starts_with("query") || name == "raw_sql" || name == "bind") {
                    return true;
                }
                after_word = true;
            }
            TokenTree::Group(_) => after_word = false,
            TokenTree::Punct(punct) => {
                after_word = false;
                match punct.as_char() {
                    '>' => angle_depth += 1,
                    '<' => angle_depth -= 1,
                    '.' | ':' | '!' | '?' => {}
                    _ if angle_depth > 0 => {}
                    _ => return false,
                }
            }
            TokenTree::Literal(_) if angle_depth > 0 => {}
            TokenTree::Literal(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> bool {
        let handle = Ident::new("ctx", proc_macro2::Span::call_site());
        let body: TokenStream = body.parse().unwrap();
        let before = body.to_string();
        let after = replace(body, &handle, "words").to_string();
        assert_eq!(after != before, after.contains("compile_error"));
        after != before
    }

    #[test]
    fn queries_given_the_context_are_refused() {
        for body in [
            "sqlx::query(\"x\").execute(ctx).await?;",
            "let x = query_as::<_, (i64, Vec<u8>)>(\"x\").bind(1).fetch_all(&ctx).await?;",
            "tokio::join!(sqlx::query!(\"x\", 1).fetch_one(ctx), y)",
            "if true { raw_sql(\"x\").execute(&*ctx).await? }",
            "return q.bind(1).fetch_optional(ctx).await;",
        ] {
            assert!(refused(body), "{body}");
        }
    }

    #[test]
    fn everything_else_stays() {
        for body in [
            "ctx.execute(sqlx::query(\"x\")).await?;",
            "steps.execute(ctx).await?;",
            "let q = query(\"x\"); step.execute(ctx)",
            "sqlx::query(\"x\").execute(tx.executor()).await?",
            "sqlx::query(\"x\").bind(ctx).execute(other)",
            "query(x), run.execute(ctx)",
            "execute(ctx)",
        ] {
            assert!(!refused(body), "{body}");
        }
    }
}
