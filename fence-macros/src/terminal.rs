//! `#[terminal_write]`: the attribute and the function, checked.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Signature, Type};

use crate::{
    args::TerminalOptions,
    diag::Errors,
    expand,
    item::Item,
    params::Params,
    scan,
    signature::{self, Kind},
};

const NOT_AN_EXECUTOR: &str = "a fenced transaction is not an executor: make the terminal write with \
     `tx.terminal(query).await`, pass `tx.executor()` for everything else";

/// A terminal write without mistakes in its signature.
pub(crate) struct Terminal {
    pub(crate) item: Item,
    pub(crate) options: TerminalOptions,
    pub(crate) returns: Type,
    /// All of them: the first is the transaction.
    pub(crate) params: Params,
}

/// The attribute's expansion: the function as it stands and, where the syntax is right, the checks by type.
pub(crate) fn terminal_write(args: TokenStream, tokens: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let options = TerminalOptions::parse(args, &mut errors);
    let expansion = match Item::parse(tokens, "terminal_write", &mut errors) {
        Ok(mut item) => match check(&mut item.sig, &mut errors) {
            Some(returns) => {
                scan::refuse_as_executor(&mut item, NOT_AN_EXECUTOR);
                let params = Params::all(&item.sig);
                expand::terminal(&Terminal { item, options, returns, params })
            }
            None => item.into_token_stream(),
        },
        Err(tokens) => tokens,
    };
    errors.append_to(expansion)
}

/// The type of the result, if the signature is without mistakes.
fn check(sig: &mut Signature, errors: &mut Errors) -> Option<Type> {
    let mut mistakes = Errors::default();
    signature::check(sig, Kind::Terminal, &mut mistakes);
    signature::first_parameter(sig, Kind::Terminal, &mut mistakes);
    let returns = signature::return_type(sig, Kind::Terminal, &mut mistakes).cloned();
    let good = mistakes.is_empty();
    errors.append(mistakes);
    returns.filter(|_| good)
}
