//! `#[fenced_job]`: the attribute and the function, checked.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Signature, Type};

use crate::{
    args::JobOptions,
    diag::Errors,
    expand,
    item::Item,
    params::{self, Params},
    scan,
    signature::{self, Kind},
};

const NOT_AN_EXECUTOR: &str = "a job's context is not an executor: write in `ctx.transaction(async |tx| …)` and \
     pass `tx.executor()`, read through `ctx.read()`, or give a single statement to `ctx.execute(query)`";

/// A job without mistakes in its signature.
pub(crate) struct Job {
    pub(crate) item: Item,
    pub(crate) options: JobOptions,
    /// What the first parameter refers to.
    pub(crate) context: Type,
    pub(crate) returns: Type,
    pub(crate) params: Params,
}

/// The attribute's expansion. Mistakes in the options leave a job with the defaults, mistakes in the signature the
/// plain function, so that the rest of the crate and the editor go on.
pub(crate) fn fenced_job(args: TokenStream, tokens: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let options = JobOptions::parse(args, &mut errors);
    let expansion = match Item::parse(tokens, "fenced_job", &mut errors) {
        Ok(mut item) => match check(&mut item.sig, &mut errors) {
            Some((context, returns)) => {
                scan::refuse_as_executor(&mut item, NOT_AN_EXECUTOR);
                let params = Params::behind_first(&item.sig);
                if let Some(lease) = &options.lease {
                    lease.check(&params, &mut errors);
                }
                expand::job(&Job { item, options, context, returns, params })
            }
            None => item.into_token_stream(),
        },
        Err(tokens) => tokens,
    };
    errors.append_to(expansion)
}

/// The types of the context and of the result, if the signature is without mistakes.
fn check(sig: &mut Signature, errors: &mut Errors) -> Option<(Type, Type)> {
    let mut mistakes = Errors::default();
    signature::check(sig, Kind::Job, &mut mistakes);
    let context = signature::first_parameter(sig, Kind::Job, &mut mistakes).cloned();
    let returns = signature::return_type(sig, Kind::Job, &mut mistakes).cloned();
    if let Some(returns) = &returns {
        params::check_return_type(returns, &mut mistakes);
    }
    let good = mistakes.is_empty();
    errors.append(mistakes);
    Some((context?, returns?)).filter(|_| good)
}
