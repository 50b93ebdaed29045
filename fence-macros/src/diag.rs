//! Mistakes: collected, so that all are shown at once, and worded.

use std::fmt::Write as _;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;

/// Every mistake found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    /// A mistake that lies in `tokens`.
    pub(crate) fn push(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.push_error(syn::Error::new_spanned(tokens, message));
    }

    pub(crate) fn push_error(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    pub(crate) fn append(&mut self, others: Self) {
        if let Some(others) = others.0 {
            self.push_error(others);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The expansion and one `compile_error!` for each mistake.
    pub(crate) fn append_to(self, mut expansion: TokenStream) -> TokenStream {
        expansion.extend(self.0.map(syn::Error::into_compile_error));
        expansion
    }

    #[cfg(test)]
    pub(crate) fn messages(self) -> Vec<String> {
        self.0.into_iter().flatten().map(|error| error.to_string()).collect()
    }
}

/// "; did you mean `x`?" if one of `known` is close enough to be what was meant, else the list of what there is.
pub(crate) fn did_you_mean(found: &str, known: &[&str]) -> String {
    match closest(found, known) {
        Some(known) => format!("; did you mean `{known}`?"),
        None => format!("; there is {}", list(known)),
    }
}

/// The one of `known` that was probably meant.
pub(crate) fn closest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|known| (distance(&found.to_lowercase(), known), *known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// How many characters must be added, removed, replaced or swapped with their neighbour to get from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// "`a`, `b` and `c`".
fn list(words: &[&str]) -> String {
    let mut out = String::new();
    for (i, word) in words.iter().enumerate() {
        let before = match i {
            0 => "",
            _ if i + 1 == words.len() => " and ",
            _ => ", ",
        };
        let _ = write!(out, "{before}`{word}`");
    }
    out
}

/// Tokens as a person writes them: `&FenceCtx<Postgres>`, not `& FenceCtx < Postgres >`.
pub(crate) fn source(tokens: &impl ToTokens) -> String {
    let mut out = String::new();
    write_source(tokens.to_token_stream(), &mut out);
    out
}

fn write_source(tokens: TokenStream, out: &mut String) {
    let mut after_word = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{ ", " }"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push_str(open);
                write_source(group.stream(), out);
                out.push_str(close);
                after_word = true;
            }
            TokenTree::Punct(punct) => {
                let (spaced, c) = (punct.spacing() == Spacing::Alone, punct.as_char());
                // A `>` or `-` that belongs to an arrow, and the separators, stand apart; everything else is close up.
                match c {
                    ',' | ';' => out.extend([c, ' ']),
                    '=' | '+' => out.extend([' ', c, ' ']),
                    '-' if !spaced => out.extend([' ', c]),
                    '>' if out.ends_with('-') => out.extend([c, ' ']),
                    ':' if spaced && !out.ends_with(':') => out.extend([c, ' ']),
                    _ => out.push(c),
                }
                after_word = false;
            }
            word => {
                let word = word.to_string();
                if after_word {
                    out.push(' ');
                }
                out.push_str(&word);
                // A lifetime is followed by a space: `&'a str`; its apostrophe arrives as a punct of its own.
                after_word = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[&str] = &["lease", "ttl", "renew", "wait", "on_lost", "crate"];

    #[test]
    fn close_words_are_suggested() {
        for (found, meant) in [
            ("leese", "lease"),
            ("laese", "lease"),
            ("TTL", "ttl"),
            ("tll", "ttl"),
            ("onlost", "on_lost"),
            ("crat", "crate"),
        ] {
            let expected = format!("; did you mean `{meant}`?");
            assert_eq!(did_you_mean(found, OPTIONS), expected, "{found}");
        }
    }

    #[test]
    fn far_words_get_the_list() {
        assert_eq!(
            did_you_mean("frequency", OPTIONS),
            "; there is `lease`, `ttl`, `renew`, `wait`, `on_lost` and `crate`"
        );
        assert_eq!(did_you_mean("x", &["crate"]), "; there is `crate`");
    }

    #[test]
    fn distances() {
        for (a, b, expected) in [("", "", 0), ("", "ab", 2), ("ab", "ab", 0), ("ab", "ba", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn source_reads_like_source() {
        for text in [
            "&FenceCtx<Postgres>",
            "&'a mut FencedTx<'_, DB, L>",
            "Option<Arc<sqlx::PgPool>>",
            "(u8, [u8; 4])",
            "impl Fn(&str) -> Result<(), E> + Send",
            "<DB as Database>::Connection",
        ] {
            let tokens: TokenStream = text.parse().unwrap();
            assert_eq!(source(&tokens), text);
        }
    }
}
