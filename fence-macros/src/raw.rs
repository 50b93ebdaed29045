//! Which types the runtime's probe is asked about, so that no raw handle gets into a signature.

use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::{
    AngleBracketedGenericArguments, GenericArgument, PathArguments, ReturnType, Type, TypeImplTrait, TypeParamBound,
    TypePath,
};

use crate::{
    params::{Param, Params},
    signature::ungroup,
};

/// Statements that do not compile if a parameter is a raw handle. `rt` is the path of the runtime's private module.
pub(crate) fn checks(list: &[Param], params: &Params, rt: &TokenStream) -> TokenStream {
    let admitted: Vec<TokenStream> = list.iter().filter_map(|param| admit(param, params)).collect();
    if admitted.is_empty() {
        return TokenStream::new();
    }
    quote! {
        {
            use #rt::{admit, probe};
            #(#admitted)*
        }
    }
}

/// One statement for one parameter: the answer about any type in it is the answer about it. The spans make the compiler
/// point at the parameter's type.
fn admit(param: &Param, params: &Params) -> Option<TokenStream> {
    let mut types = Types { found: Vec::new(), impl_traits: &params.impl_traits };
    types.visit(&param.stored);
    let (first, last) = param.span;
    let mut verdicts = TokenStream::new();
    for (index, ty) in types.found.iter().enumerate() {
        let or = (index > 0).then(|| quote_spanned!(first=> |));
        let probe = Ident::new("probe", first);
        let call = quote_spanned!(last=> ());
        verdicts.extend(quote_spanned!(first=> #or #probe::<#ty>().verdict #call));
    }
    let admit = Ident::new("admit", first);
    let arguments = quote_spanned!(last=> (#verdicts));
    (!verdicts.is_empty()).then(|| quote_spanned!(last=> #admit #arguments;))
}

/// The types in a type of which a value may be had: behind references, in containers, out of functions, but not the
/// arguments of functions, since `impl AsyncFn(&mut PgConnection)` *takes* a connection.
struct Types<'a> {
    found: Vec<&'a Type>,
    impl_traits: &'a [(Ident, TypeImplTrait)],
}

impl<'a> Types<'a> {
    fn visit(&mut self, ty: &'a Type) {
        // Parentheses that a reference needed would be a lint without it.
        let ty = ungroup(ty);
        match ty {
            Type::Reference(reference) => self.visit(&reference.elem),
            Type::Ptr(pointer) => self.visit(&pointer.elem),
            Type::Slice(slice) => self.visit(&slice.elem),
            Type::Array(array) => self.visit(&array.elem),
            Type::Tuple(tuple) => tuple.elems.iter().for_each(|elem| self.visit(elem)),
            Type::FnPtr(function) => self.visit_output(&function.output),
            Type::Path(path) => self.visit_path(path, ty),
            Type::TraitObject(object) => {
                self.found.push(ty);
                self.visit_bounds(&object.bounds);
            }
            Type::Macro(_) => self.found.push(ty),
            _ => {}
        }
    }

    fn visit_path(&mut self, path: &'a TypePath, ty: &'a Type) {
        if is_primitive(path) {
            return;
        }
        self.found.push(ty);
        let impl_traits = self.impl_traits;
        if let Some((_, bounds)) = impl_traits.iter().find(|(name, _)| path.path.is_ident(name)) {
            self.visit_bounds(&bounds.bounds);
        }
        path.path.segments.iter().for_each(|segment| self.visit_arguments(&segment.arguments));
    }

    fn visit_bounds(&mut self, bounds: impl IntoIterator<Item = &'a TypeParamBound>) {
        for bound in bounds {
            if let TypeParamBound::Trait(bound) = bound {
                bound.path.segments.iter().for_each(|segment| self.visit_arguments(&segment.arguments));
            }
        }
    }

    fn visit_arguments(&mut self, arguments: &'a PathArguments) {
        match arguments {
            PathArguments::None => {}
            PathArguments::AngleBracketed(AngleBracketedGenericArguments { args, .. }) => {
                for argument in args {
                    match argument {
                        GenericArgument::Type(ty) => self.visit(ty),
                        GenericArgument::AssocType(assoc) => self.visit(&assoc.ty),
                        _ => {}
                    }
                }
            }
            PathArguments::Parenthesized(arguments) => self.visit_output(&arguments.output),
        }
    }

    fn visit_output(&mut self, output: &'a ReturnType) {
        if let ReturnType::Type(_, ty) = output {
            self.visit(ty);
        }
    }
}

/// The types that are numbers and text, whatever else: no probe needed.
fn is_primitive(path: &TypePath) -> bool {
    const PRIMITIVES: &[&str] = &[
        "bool", "char", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
        "f32", "f64",
    ];
    path.qself.is_none() && PRIMITIVES.iter().any(|primitive| path.path.is_ident(primitive))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::source;

    fn asked(parameter: &str) -> Vec<String> {
        let sig = syn::parse_str(&format!("fn f(ctx: &C, a: {parameter})")).unwrap();
        let params = Params::behind_first(&sig);
        let mut types = Types { found: Vec::new(), impl_traits: &params.impl_traits };
        types.visit(&params.list[0].stored);
        types.found.into_iter().map(source).collect()
    }

    #[test]
    fn what_the_probe_is_asked() {
        for (parameter, types) in [
            ("i64", &[][..]),
            ("&str", &[]),
            ("&mut [u8; 4]", &[]),
            ("&Deps", &["Deps"]),
            ("Arc<Deps>", &["Arc<Deps>", "Deps"]),
            ("(i64, Option<&Pool>)", &["Option<&'__arg0 Pool>", "Pool"]),
            ("HashMap<String, Vec<u8>>", &["HashMap<String, Vec<u8>>", "String", "Vec<u8>"]),
            ("&(dyn Send + Sync)", &["dyn Send + Sync"]),
            ("fn(&mut Conn) -> Out", &["Out"]),
            ("&dyn Fn(&mut Conn) -> Out", &["dyn Fn(&mut Conn) -> Out", "Out"]),
            ("impl Iterator<Item = Row>", &["ImplIterator0", "Row"]),
            ("impl Fn(Conn) -> Out", &["ImplFn0", "Out"]),
            ("Vec<impl Into<A>>", &["Vec<ImplInto0>", "ImplInto0", "A"]),
        ] {
            assert_eq!(asked(parameter), types, "{parameter}");
        }
    }
}
