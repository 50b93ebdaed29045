//! Which of the function's attributes go to the constructor and which to the function itself.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Meta, Token, parse::Parser, punctuated::Punctuated};

/// The attributes of the constructor: what callers and the documentation see.
pub(crate) fn outside(attrs: &[Attribute]) -> Vec<Attribute> {
    select(attrs, Side::Outside)
}

/// The attributes of the function itself.
pub(crate) fn inside(attrs: &[Attribute]) -> Vec<Attribute> {
    select(attrs, Side::Inside)
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Outside,
    Inside,
}

fn select(attrs: &[Attribute], side: Side) -> Vec<Attribute> {
    attrs
        .iter()
        .filter_map(|attr| {
            let meta = on_side(&attr.meta, side)?;
            Some(Attribute { meta, ..attr.clone() })
        })
        .collect()
}

/// The attribute as that side has it, if it does.
fn on_side(meta: &Meta, side: Side) -> Option<Meta> {
    let path = meta.path();
    let is = |names: &[&str]| names.iter().any(|name| path.is_ident(name));
    if is(&["cfg_attr"]) {
        return conditional(meta, side);
    }
    // A lint that the function is allowed to trip over may be about its parameters, which the constructor has too; what
    // is *expected* there may be found inside only, so outside it is merely allowed.
    if side == Side::Outside && is(&["expect"]) {
        let Meta::List(list) = meta else { return None };
        let tokens = &list.tokens;
        return Some(syn::parse_quote!(allow(#tokens)));
    }
    let outside = is(&["doc", "must_use", "deprecated", "cfg"]);
    (is(&["allow"]) || outside == (side == Side::Outside)).then(|| meta.clone())
}

/// `cfg_attr(condition, a, b)`, less what does not belong on that side.
fn conditional(meta: &Meta, side: Side) -> Option<Meta> {
    let Meta::List(list) = meta else { return None };
    let parser = |input: syn::parse::ParseStream<'_>| {
        let condition = input.parse::<Meta>()?.into_token_stream();
        input.parse::<Token![,]>()?;
        Ok((condition, Punctuated::<Meta, Token![,]>::parse_terminated(input)?))
    };
    let Ok((condition, metas)): syn::Result<(TokenStream, _)> = parser.parse2(list.tokens.clone()) else {
        // Not ours to explain: the compiler sees it inside.
        return (side == Side::Inside).then(|| meta.clone());
    };
    let kept: Vec<Meta> = metas.iter().filter_map(|meta| on_side(meta, side)).collect();
    if kept.is_empty() {
        return None;
    }
    let tokens = quote!(#condition, #(#kept),*);
    Some(Meta::List(syn::MetaList { tokens, ..list.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::source;

    fn both(attr: &str) -> (String, String) {
        let attrs = Attribute::parse_outer.parse_str(attr).unwrap();
        let text = |attrs: Vec<Attribute>| attrs.iter().map(source).collect::<String>();
        (text(outside(&attrs)), text(inside(&attrs)))
    }

    #[test]
    fn each_goes_to_its_side() {
        for (attr, outer, inner) in [
            ("#[doc = \"x\"]", "#[doc = \"x\"]", ""),
            ("#[must_use]", "#[must_use]", ""),
            ("#[deprecated(note = \"x\")]", "#[deprecated(note = \"x\")]", ""),
            ("#[cfg(test)]", "#[cfg(test)]", ""),
            ("#[inline]", "", "#[inline]"),
            ("#[tracing::instrument(skip(a))]", "", "#[tracing::instrument(skip(a))]"),
            ("#[allow(x)]", "#[allow(x)]", "#[allow(x)]"),
            ("#[expect(x)]", "#[allow(x)]", "#[expect(x)]"),
            ("#[deny(x)]", "", "#[deny(x)]"),
            (
                "#[cfg_attr(test, must_use, inline, expect(x))]",
                "#[cfg_attr(test, must_use, allow(x))]",
                "#[cfg_attr(test, inline, expect(x))]",
            ),
            ("#[cfg_attr(all(a, b), doc = \"x\")]", "#[cfg_attr(all(a, b), doc = \"x\")]", ""),
        ] {
            assert_eq!(both(attr), (outer.to_owned(), inner.to_owned()), "{attr}");
        }
    }
}
