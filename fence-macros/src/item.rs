//! The annotated function: attributes, visibility and signature read, the body left as it is.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{
    Attribute, Signature, Token, Visibility, braced,
    parse::{Parse, ParseStream},
    token::Brace,
};

use crate::diag::Errors;

pub(crate) struct Item {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    pub(crate) body: Body,
}

/// A function's body, never looked into: an expression that syn does not know yet must not stop anybody.
pub(crate) struct Body {
    pub(crate) brace: Brace,
    /// `#![…]` at its beginning.
    pub(crate) inner_attrs: Vec<Attribute>,
    pub(crate) statements: TokenStream,
}

impl Item {
    /// Reads the item; if it is anything but a function with a body, the tokens come back, to be left as they are.
    pub(crate) fn parse(item: TokenStream, attribute: &str, errors: &mut Errors) -> Result<Self, TokenStream> {
        syn::parse2(item.clone()).map_err(|error: syn::Error| {
            let wrong = format!("`#[{attribute}]` goes on a free `async fn` with a body");
            errors.push_error(syn::Error::new(error.span(), wrong));
            item
        })
    }
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let (vis, sig) = (input.parse()?, input.parse()?);
        if input.peek(Token![;]) {
            return Err(input.error("expected a body"));
        }
        let content;
        let brace = braced!(content in input);
        let inner_attrs = content.call(Attribute::parse_inner)?;
        let statements = content.parse()?;
        Ok(Self { attrs, vis, sig, body: Body { brace, inner_attrs, statements } })
    }
}

impl ToTokens for Item {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self { attrs, vis, sig, body } = self;
        tokens.extend(quote!(#(#attrs)* #vis #sig #body));
    }
}

impl ToTokens for Body {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.brace.surround(tokens, |tokens| {
            tokens.extend(self.inner_attrs.iter().map(ToTokens::to_token_stream));
            self.statements.to_tokens(tokens);
        });
    }
}
