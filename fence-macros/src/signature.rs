//! What jobs and terminal writes have in common: the rules of their signatures.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, PatType, ReturnType, Safety, Signature, Type};

use crate::diag::{Errors, source};

/// Which of the two is checked, for the wording.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Job,
    Terminal,
}

impl Kind {
    fn noun(self) -> &'static str {
        match self {
            Self::Job => "a fenced job",
            Self::Terminal => "a terminal write",
        }
    }

    fn first_parameter(self) -> &'static str {
        match self {
            Self::Job => "ctx: &FenceCtx<DB>",
            Self::Terminal => "tx: &mut FencedTx<'_, DB>",
        }
    }
}

/// Checks everything but the first parameter and the return type. Attributes on parameters, which could not stay, go.
pub(crate) fn check(sig: &mut Signature, kind: Kind, errors: &mut Errors) {
    let noun = kind.noun();
    if sig.asyncness.is_none() {
        errors.push(sig.fn_token, format!("{noun} must be an `async fn`: add `async`"));
    }
    if let Some(constness) = &sig.constness {
        errors.push(constness, format!("{noun} cannot be `const`: remove it"));
    }
    if let Safety::Unsafe(_) | Safety::Safe(_) = &sig.safety {
        errors.push(&sig.safety, format!("{noun} cannot be `{}`: remove it", source(&sig.safety)));
    }
    if let Some(abi) = &sig.abi {
        errors.push(abi, format!("{noun} cannot be `extern`: remove it"));
    }
    if let Some(variadic) = &sig.variadic {
        errors.push(variadic, format!("{noun} cannot be variadic: remove `...`"));
    }
    for input in &mut sig.inputs {
        check_parameter(input, noun, errors);
    }
    let own_types =
        [sig.inputs.to_token_stream(), sig.output.to_token_stream(), sig.generics.where_clause.to_token_stream()];
    if let Some(own) = own_types.into_iter().find_map(|tokens| find_ident(tokens, "Self")) {
        errors.push(own, format!("{noun} is a free function: write the type's name instead of `Self`"));
    }
}

fn check_parameter(input: &mut FnArg, noun: &str, errors: &mut Errors) {
    let attrs = match input {
        FnArg::Receiver(receiver) => {
            let message = format!("{noun} is a free function: take what it needs of `self` as parameters");
            errors.push(&*receiver, message);
            return;
        }
        FnArg::Typed(parameter) => std::mem::take(&mut parameter.attrs),
    };
    for attr in attrs {
        errors.push(attr, format!("{noun} cannot have attributes on its parameters: put them on the function"));
    }
}

fn find_ident(tokens: TokenStream, name: &str) -> Option<Ident> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(ident) if ident == name => Some(ident),
        TokenTree::Group(group) => find_ident(group.stream(), name),
        _ => None,
    })
}

fn find_keyword_impl(ty: &Type) -> bool {
    find_ident(ty.to_token_stream(), "impl").is_some()
}

/// The first parameter, if it is a reference of the right kind: what it refers to is checked by type.
pub(crate) fn first_parameter<'a>(sig: &'a Signature, kind: Kind, errors: &mut Errors) -> Option<&'a Type> {
    let (noun, wanted) = (kind.noun(), kind.first_parameter());
    let parameter = match sig.inputs.first() {
        Some(FnArg::Typed(parameter)) => parameter,
        // Told already.
        Some(FnArg::Receiver(_)) => return None,
        None => {
            let message = format!("{noun} must have the first parameter `{wanted}`: add it");
            errors.push_error(syn::Error::new(sig.paren_token.span.join(), message));
            return None;
        }
    };
    referent(parameter, kind).map_err(|message| errors.push(&parameter.ty, message)).ok()
}

fn referent(PatType { ty, .. }: &PatType, kind: Kind) -> Result<&Type, String> {
    let (noun, wanted) = (kind.noun(), kind.first_parameter());
    let found = source(ty);
    let (_, wanted_type) = wanted.split_once(' ').expect("a parameter");
    let advice = match kind {
        Kind::Job => "take connections from the context, so that every write carries the fencing token",
        Kind::Terminal => "it is the transaction that the fencing token guards",
    };
    let not_ours = format!("the first parameter of {noun} must be `{wanted_type}`, found `{found}`; {advice}");
    match (ungroup(ty), kind) {
        (Type::Reference(reference), _) if names_a_handle(&reference.elem) => Err(not_ours),
        (Type::Reference(reference), Kind::Job) if reference.mutability.is_some() => {
            Err(format!("{noun} borrows its context: write `{wanted}` without `mut`"))
        }
        (Type::Reference(reference), Kind::Job)
            if reference.lifetime.as_ref().is_some_and(|lifetime| lifetime.ident != "_") =>
        {
            Err(format!("the context lives for one run: write `{wanted}` without a named lifetime"))
        }
        (Type::Reference(reference), Kind::Terminal) if reference.mutability.is_none() => {
            Err(format!("{noun} writes: take `{wanted}`, with `mut`"))
        }
        (Type::Reference(reference), _) if matches!(ungroup(&reference.elem), Type::ImplTrait(_) | Type::Infer(_)) => {
            Err(not_ours)
        }
        (Type::Reference(reference), Kind::Job) if find_keyword_impl(&reference.elem) => Err(
            "the context's type must have a name: declare a generic, `async fn job<DB: Backend>(ctx: &FenceCtx<DB>)`"
                .into(),
        ),
        (Type::Reference(reference), _) => Ok(&reference.elem),
        _ => Err(not_ours),
    }
}

/// Whether what stands in the first parameter's place bears the name of one of sqlx's handles. Only wording hangs on it
/// (here and not several times by type): whatever it is, it is not what must stand there.
fn names_a_handle(ty: &Type) -> bool {
    let Type::Path(path) = ungroup(ty) else { return false };
    let Some(last) = path.path.segments.last() else { return false };
    let name = last.ident.to_string();
    name.ends_with("Pool") || name.ends_with("Connection") || name.ends_with("Transaction")
}

/// The declared return type.
pub(crate) fn return_type<'a>(sig: &'a Signature, kind: Kind, errors: &mut Errors) -> Option<&'a Type> {
    match &sig.output {
        ReturnType::Type(_, ty) => Some(ty),
        ReturnType::Default => {
            let message = match kind {
                Kind::Job => "a fenced job must return a `Result`: add `-> Result<T, E>`",
                Kind::Terminal => "a terminal write must return `Result<Written, _>`: add `-> Result<Written, Error>`",
            };
            errors.push_error(syn::Error::new(sig.paren_token.span.close(), message));
            None
        }
    }
}

/// The type without the invisible or visible parentheses around it.
pub(crate) fn ungroup(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungroup(&group.elem),
        Type::Paren(paren) => ungroup(&paren.elem),
        ty => ty,
    }
}
