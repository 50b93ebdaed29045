//! Where a job's lease comes from: a name, or a template that names parameters of the job.

use syn::{Expr, ExprLit, Lit, LitStr};

use crate::{
    diag::{self, Errors},
    names::{self, Part},
    params::Params,
};

pub(crate) enum Lease {
    /// `lease = "group:name"`
    Named(String, LitStr),
    /// `lease = "tenant:{tenant_id}:billing"`
    Template(Vec<Part>, LitStr),
}

impl Lease {
    pub(crate) fn parse(value: &Expr, errors: &mut Errors) -> Option<Self> {
        let Some(literal) = string(value) else {
            errors.push(
                value,
                "`lease` must be a string literal such as \"group:name\": other expressions are not supported yet",
            );
            return None;
        };
        match names::parse(&literal.value()) {
            Err(rule) => {
                errors.push(&literal, format!("lease name {rule}"));
                None
            }
            Ok(parts) => match &parts[..] {
                [Part::Text(name)] => Some(Self::Named(name.clone(), literal)),
                _ => Some(Self::Template(parts, literal)),
            },
        }
    }

    /// Every placeholder is a parameter behind the context.
    ///
    /// ```text
    /// #[fenced_job(lease = "tenant:{tenant}:billing")]
    ///                      ^^^^^^^^^^^^^^^^^^^^^^^^^ `{tenant}` is no parameter of this job; did you mean `tenant_id`?
    /// async fn bill(ctx: &FenceCtx<Postgres>, tenant_id: i64) -> …
    /// ```
    pub(crate) fn check(&self, params: &Params, errors: &mut Errors) {
        let Self::Template(parts, literal) = self else { return };
        let known: Vec<String> = params.list.iter().map(|param| names::plain(&param.name)).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        for part in parts {
            if let Part::Placeholder(name) = part
                && !known.contains(&&**name)
            {
                let meant = if known.is_empty() {
                    "; add it behind the context".to_owned()
                } else {
                    diag::did_you_mean(name, &known)
                };
                errors.push(literal, format!("`{{{name}}}` is no parameter of this job{meant}"));
            }
        }
    }
}

/// The string literal that an expression is, also behind a `$value:expr` of a `macro_rules!` macro.
pub(crate) fn string(value: &Expr) -> Option<LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.clone()),
        Expr::Group(group) => string(&group.expr),
        _ => None,
    }
}
