//! Parameters whose types can be named: elided lifetimes get names, `impl Trait` becomes a generic.

use proc_macro2::{Ident, Span};
use quote::{ToTokens, format_ident};
use syn::{
    FnArg, GenericParam, Generics, Lifetime, ParenthesizedGenericArguments, Pat, Signature, Type, TypeFnPtr,
    TypeImplTrait, TypeParamBound, TypeReference, parse_quote, parse_quote_spanned,
    spanned::Spanned,
    visit_mut::{self, VisitMut},
};

use crate::diag::Errors;

pub(crate) struct Params {
    pub(crate) list: Vec<Param>,
    /// The function's own generics and a name for every elided lifetime.
    pub(crate) generics: Generics,
    /// Those, and a type for every `impl Trait`.
    pub(crate) stored_generics: Generics,
    /// The `impl Trait`s and the names of their generics.
    pub(crate) impl_traits: Vec<(Ident, TypeImplTrait)>,
}

pub(crate) struct Param {
    /// The parameter's own name where it has one, with the macro's hygiene.
    pub(crate) name: Ident,
    /// As written, elided lifetimes named.
    pub(crate) ty: Type,
    /// The same without `impl Trait`.
    pub(crate) stored: Type,
    /// Where the type begins and ends in the source.
    pub(crate) span: (Span, Span),
}

impl Params {
    /// A job's: the first one, its context, comes when it runs.
    pub(crate) fn behind_first(sig: &Signature) -> Self {
        Self::new(sig, 1)
    }

    pub(crate) fn all(sig: &Signature) -> Self {
        Self::new(sig, 0)
    }

    fn new(sig: &Signature, skip: usize) -> Self {
        let (mut lifetimes, mut impl_traits) = (NameLifetimes::default(), NameImplTraits::default());
        let mut list: Vec<Param> = Vec::new();
        for (index, input) in sig.inputs.iter().skip(skip).enumerate() {
            let FnArg::Typed(parameter) = input else { continue };
            let name = match &*parameter.pat {
                Pat::Ident(pat) if pat.subpat.is_none() && !list.iter().any(|other| other.name == pat.ident) => {
                    // The hygiene of the macro: lints about the name are for the function, not for the constructor.
                    // Not `Ident::new`, which takes no raw identifier.
                    let mut name = pat.ident.clone();
                    name.set_span(name.span().resolved_at(Span::mixed_site()));
                    name
                }
                pat => format_ident!("arg{}", index, span = pat.span().resolved_at(Span::mixed_site())),
            };
            let mut ty = Type::clone(&parameter.ty);
            lifetimes.visit_type_mut(&mut ty);
            let mut stored = ty.clone();
            impl_traits.visit_type_mut(&mut stored);
            list.push(Param { name, ty, stored, span: ends(&parameter.ty) });
        }

        let mut generics = sig.generics.clone();
        for lifetime in lifetimes.named.iter().rev() {
            generics.params.insert(0, parse_quote!(#lifetime));
        }
        let mut stored_generics = generics.clone();
        for (name, TypeImplTrait { bounds, .. }) in &impl_traits.named {
            stored_generics.params.push(parse_quote!(#name: #bounds));
        }
        Self { list, generics, stored_generics, impl_traits: impl_traits.named }
    }

    /// The generics that the user declared and the `impl Trait`s, which a field may or may not mention.
    pub(crate) fn maybe_unused(&self, sig: &Signature) -> Vec<&GenericParam> {
        if sig.generics.params.is_empty() && self.impl_traits.is_empty() {
            return Vec::new();
        }
        self.stored_generics.params.iter().collect()
    }
}

/// The spans of the first and the last token: the compiler joins them where they begin and end an expression.
pub(crate) fn ends(tokens: &impl ToTokens) -> (Span, Span) {
    let mut spans = tokens.to_token_stream().into_iter().map(|token| token.span());
    let first = spans.next().unwrap_or_else(Span::call_site);
    (first, spans.last().unwrap_or(first))
}

/// Gives every elided lifetime a name.
#[derive(Default)]
struct NameLifetimes {
    named: Vec<Lifetime>,
}

impl NameLifetimes {
    fn fresh(&mut self, span: Span) -> Lifetime {
        let name = format!("'__arg{}", self.named.len());
        let lifetime = Lifetime::new(&name, span.resolved_at(Span::mixed_site()));
        self.named.push(lifetime.clone());
        lifetime
    }
}

impl VisitMut for NameLifetimes {
    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        if reference.lifetime.is_none() {
            reference.lifetime = Some(self.fresh(reference.and_token.span()));
        }
        visit_mut::visit_type_reference_mut(self, reference);
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_" {
            *lifetime = self.fresh(lifetime.span());
        }
    }

    // `fn(&str)` and `Fn(&str)` bind their elided lifetimes themselves.
    fn visit_type_fn_ptr_mut(&mut self, _: &mut TypeFnPtr) {}
    fn visit_parenthesized_generic_arguments_mut(&mut self, _: &mut ParenthesizedGenericArguments) {}
}

/// Puts a name in the place of every `impl Trait`.
#[derive(Default)]
struct NameImplTraits {
    named: Vec<(Ident, TypeImplTrait)>,
}

impl VisitMut for NameImplTraits {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        // Inside out, so that a nested one has its name when the bounds of the outer one are taken.
        visit_mut::visit_type_mut(self, ty);
        if let Type::ImplTrait(bounds) = ty {
            // The compiler shows the name where it speaks of the parameter.
            let first = bounds.bounds.iter().find_map(|bound| match bound {
                TypeParamBound::Trait(bound) => bound.path.segments.last(),
                _ => None,
            });
            let named = first.map(|segment| segment.ident.to_string()).unwrap_or_default();
            let span = bounds.span();
            let name = format_ident!("Impl{named}{}", self.named.len(), span = span.resolved_at(Span::mixed_site()));
            let replaced = std::mem::replace(ty, parse_quote_spanned!(span=> #name));
            if let Type::ImplTrait(bounds) = replaced {
                self.named.push((name, bounds));
            }
        }
    }
}

/// The type with `()` for every `impl Trait`, which has no name.
pub(crate) fn without_impl_traits(ty: &Type) -> Type {
    struct Erase;
    impl VisitMut for Erase {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            match ty {
                Type::ImplTrait(_) => *ty = parse_quote!(()),
                ty => visit_mut::visit_type_mut(self, ty),
            }
        }
    }
    let mut ty = ty.clone();
    Erase.visit_type_mut(&mut ty);
    ty
}

const ELIDED: &str = "a fenced job cannot return an elided lifetime: return an owned value, or name the lifetime of an \
     argument";

const UNNAMED: &str = "a fenced job cannot return `impl Trait`: name the type, or box it as `Box<dyn … + Send>`";

/// A return type must say where its lifetimes come from, and be a type that has a name.
pub(crate) fn check_return_type(ty: &Type, errors: &mut Errors) {
    let mut ty = ty.clone();
    CheckReturnType { errors }.visit_type_mut(&mut ty);
}

struct CheckReturnType<'a> {
    errors: &'a mut Errors,
}

impl VisitMut for CheckReturnType<'_> {
    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        if reference.lifetime.is_none() {
            self.errors.push(reference.and_token, ELIDED);
        }
        visit_mut::visit_type_reference_mut(self, reference);
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_" {
            self.errors.push(lifetime, ELIDED);
        }
    }

    fn visit_type_mut(&mut self, ty: &mut Type) {
        if let Type::ImplTrait(bounds) = ty {
            self.errors.push(bounds, UNNAMED);
            return;
        }
        visit_mut::visit_type_mut(self, ty);
    }

    fn visit_type_fn_ptr_mut(&mut self, _: &mut TypeFnPtr) {}
    fn visit_parenthesized_generic_arguments_mut(&mut self, _: &mut ParenthesizedGenericArguments) {}
}
