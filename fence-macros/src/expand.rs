//! Checked models as Rust: a small readable call into the runtime's private module.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{GenericParam, Generics, Index, Signature, Type, spanned::Spanned};

use crate::{
    args::{JobOptions, OnLost},
    attrs,
    item::Item,
    job::Job,
    lease::Lease,
    names::{self, Part},
    params::{self, Params},
    raw,
    signature::ungroup,
    terminal::Terminal,
};

/// The constructor, with the function and the job's type inside.
pub(crate) fn job(job: &Job) -> TokenStream {
    let Job { item: Item { attrs, vis, sig, body }, options, context, returns, params } = job;
    let krate = &options.krate;
    let private = quote!(#krate::__private);
    // Short inside the constructor; nobody calls anything of theirs that.
    let rt = quote!(__fence);

    // Lints about generated names look at where a name comes from, so both come from the macro.
    let hygiene = sig.ident.span().resolved_at(Span::mixed_site());
    let function = format_ident!("__fenced_{}", sig.ident, span = hygiene);
    let job_type = format_ident!("__Fenced_{}", sig.ident, span = hygiene);

    let inner_attrs = attrs::inside(attrs);
    let inner_sig = Signature { ident: function.clone(), ..sig.clone() };
    let constructor = constructor(job, &private);
    let outer_attrs = attrs::outside(attrs);

    let (impl_generics, type_generics, where_clause) = params.stored_generics.split_for_impl();
    let fields = params.list.iter().map(|param| &param.stored);
    let marker = Marker(params.maybe_unused(sig));
    let marker_type = marker.field_type();
    let lease_type = projection(context, "Context", "Lease", &rt);

    let name = sig.ident.to_string();
    let lease = lease(options.lease.as_ref(), params, &rt);
    let lease_options = lease_options(options, &rt);
    let checks = raw::checks(&params.list, params, &rt);
    let own_generics = turbofish(&sig.generics, 0);
    let arguments = (0..params.list.len()).map(Index::from);

    let names = params.list.iter().map(|param| &param.name);
    let job_generics = turbofish(&params.generics, params.impl_traits.len());
    let marker_value = marker.value();

    // What the compiler says of all this as a whole is about the function: it stands at its name.
    let implementation = quote_spanned! {hygiene=>
        impl #impl_generics #rt::Body for #job_type #type_generics #where_clause {
            type Context = #context;
            type Lease = #lease_type;
            type Returns = #returns;

            fn name(&self) -> &'static ::core::primitive::str {
                ::core::concat!(::core::module_path!(), "::", #name)
            }

            fn lease(&self) -> Self::Lease {
                #lease
            }

            fn options(&self) -> #rt::LeaseOptions {
                #lease_options
            }

            async fn run(self, ctx: &Self::Context) -> Self::Returns {
                #checks
                #function #own_generics (ctx, #(self.#arguments),*).await
            }
        }
    };
    let value = quote_spanned!(hygiene=> #rt::Job(#job_type #job_generics (#(#names,)* #marker_value)));

    quote! {
        #(#outer_attrs)*
        #vis #constructor {
            use #private as #rt;

            #[allow(clippy::unused_async)]
            #(#inner_attrs)*
            #inner_sig #body

            #[allow(non_camel_case_types)]
            struct #job_type #impl_generics (#(#fields,)* #marker_type) #where_clause;

            #implementation

            #value
        }
    }
}

/// `fn reconcile<'a>(deps: &'a Deps, run: i64) -> impl FencedJob<…>`
fn constructor(job: &Job, rt: &TokenStream) -> TokenStream {
    let Job { item: Item { sig, .. }, context, returns, params, .. } = job;
    let name = &sig.ident;
    let (impl_generics, _, where_clause) = params.generics.split_for_impl();
    let arguments = params.list.iter().map(|param| {
        let (name, ty) = (&param.name, &param.ty);
        quote!(#name: #ty)
    });
    let associated = associated_types(context, returns, rt);
    // With this crate's edition, in which it captures every lifetime; the user's may be older.
    let captures = quote_spanned!(Span::mixed_site().located_at(returns.span())=> impl);
    quote!(fn #name #impl_generics (#(#arguments),*) -> #captures #rt::FencedJob<#(#associated),*> #where_clause)
}

/// By projection, so that aliases of the context and of the result work.
fn associated_types(context: &Type, returns: &Type, rt: &TokenStream) -> [TokenStream; 4] {
    let context = |member| projection(context, "Context", member, rt);
    let returns = |member| projection(returns, "Fallible", member, rt);
    let (db, lease, ok, err) = (context("Db"), context("Lease"), returns("Ok"), returns("Err"));
    [quote!(Db = #db), quote!(Lease = #lease), quote!(Output = #ok), quote!(Error = #err)]
}

/// `<Type as Trait>::Member`, of which the compiler thinks that it stands where the type does: if the type does not
/// have the trait, it says so there, and once for all of them, because the same words in the same place are dropped.
fn projection(ty: &Type, of: &str, member: &str, rt: &TokenStream) -> TokenStream {
    let (first, last) = params::ends(ty);
    let of = Ident::new(of, first);
    let member = Ident::new(member, last);
    let open = quote_spanned!(first=> <);
    quote_spanned!(last=> #open #ty as #rt::#of>::#member)
}

fn lease(lease: Option<&Lease>, params: &Params, rt: &TokenStream) -> TokenStream {
    match lease {
        Some(Lease::Named(name, literal)) => {
            // A context with a typed lease does not go with a string: the compiler shall say so there.
            quote_spanned!(literal.span()=> #rt::untyped(#name))
        }
        Some(Lease::Template(parts, literal)) => {
            let span = literal.span().resolved_at(Span::mixed_site());
            let pieces = parts.iter().filter_map(|part| match part {
                Part::Text(text) => Some(quote_spanned!(span=> #rt::Piece::Text(#text))),
                Part::Placeholder(name) => {
                    // One that is no parameter is reported already.
                    let at = params.list.iter().position(|param| names::plain(&param.name) == *name)?;
                    let at = Index::from(at);
                    Some(quote_spanned!(span=> #rt::value(#name, &self.#at)))
                }
            });
            quote_spanned!(span=> #rt::template(&[#(#pieces),*]))
        }
        // The mistake is reported already.
        None => quote!(#rt::untyped("")),
    }
}

fn lease_options(options: &JobOptions, rt: &TokenStream) -> TokenStream {
    let millis = |duration: Duration| {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        quote!(#rt::millis(#millis))
    };
    let mut tokens = quote!(#rt::LeaseOptions::new());
    let durations =
        [("ttl", options.ttl), ("renew", options.renew), ("wait", options.wait), ("max_runtime", options.max_runtime)];
    for (method, duration) in durations {
        if let Some(duration) = duration.map(millis) {
            let method = format_ident!("{method}");
            tokens.extend(quote!(.#method(#duration)));
        }
    }
    if let OnLost::Signal = options.on_lost {
        tokens.extend(quote!(.on_lost(#rt::OnLost::Signal)));
    }
    tokens
}

/// `::<DB, N, _>`: the types and constants, then a `_` for each of `inferred`. Lifetimes are left to the compiler,
/// which refuses some of them there.
fn turbofish(generics: &Generics, inferred: usize) -> TokenStream {
    let mut arguments: Vec<TokenStream> = generics
        .params
        .iter()
        .filter_map(|param| match param {
            GenericParam::Lifetime(_) => None,
            GenericParam::Type(param) => Some(param.ident.to_token_stream()),
            GenericParam::Const(param) => Some(param.ident.to_token_stream()),
        })
        .collect();
    if arguments.is_empty() {
        return TokenStream::new();
    }
    arguments.extend(std::iter::repeat_n(quote!(_), inferred));
    quote!(::<#(#arguments),*>)
}

/// A last field that uses generics which no other field may use.
struct Marker<'a>(Vec<&'a GenericParam>);

impl Marker<'_> {
    fn field_type(&self) -> Option<TokenStream> {
        let used: Vec<TokenStream> = self
            .0
            .iter()
            .filter_map(|param| match param {
                GenericParam::Lifetime(param) => {
                    let lifetime = &param.lifetime;
                    Some(quote!(&#lifetime ()))
                }
                GenericParam::Type(param) => {
                    let ident = &param.ident;
                    Some(quote!(*const #ident))
                }
                GenericParam::Const(_) => None,
            })
            .collect();
        // Behind `fn() ->` it is `Send` whatever the types are.
        (!self.0.is_empty()).then(|| quote!(::core::marker::PhantomData<fn() -> (#(#used,)*)>))
    }

    fn value(&self) -> Option<TokenStream> {
        (!self.0.is_empty()).then(|| quote!(::core::marker::PhantomData))
    }
}

/// The function, with a check in front of its body that is never run.
pub(crate) fn terminal(terminal: &Terminal) -> TokenStream {
    let Terminal { item: Item { attrs, vis, sig, body }, options, returns, params } = terminal;
    let krate = &options.krate;
    let rt = quote!(#krate::__private);
    let check = terminal_check(params, returns, &rt);
    let inner_attrs = &body.inner_attrs;
    let statements = &body.statements;
    let block = quote_spanned!(body.brace.span.join()=> { #statements });
    quote! {
        #(#attrs)* #vis #sig {
            #(#inner_attrs)*
            #check
            #block
        }
    }
}

/// A function of its own, generic as the checked one is: it can name every type of the signature, and what the body
/// imports means nothing to it.
fn terminal_check(params: &Params, returns: &Type, rt: &TokenStream) -> TokenStream {
    let (impl_generics, _, where_clause) = params.stored_generics.split_for_impl();
    let Some((tx, rest)) = params.list.split_first() else { return TokenStream::new() };
    let Type::Reference(tx) = ungroup(&tx.stored) else { return TokenStream::new() };
    let tx = &tx.elem;
    let returns = params::without_impl_traits(returns);
    let raw = raw::checks(rest, params, rt);
    quote! {
        const _: () = {
            fn _check #impl_generics () #where_clause {
                #rt::terminal_tx::<#tx>();
                #rt::proves_write::<#returns>();
                #raw
            }
        };
    }
}
