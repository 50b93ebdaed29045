//! The attribute's options: read with their spans, every mistake collected, the rules between them checked.

use std::time::Duration;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::{
    Expr, LitStr, Path, Token,
    ext::IdentExt,
    parse::{ParseStream, Parser},
    parse_quote,
};

use crate::{
    diag::{self, Errors},
    duration::{self, Written},
    lease::{Lease, string},
};

const JOB_OPTIONS: &[&str] = &["lease", "ttl", "renew", "wait", "max_runtime", "on_lost", "crate"];
const TERMINAL_OPTIONS: &[&str] = &["crate"];
const ON_LOST: &[&str] = &["drop", "signal"];

const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// What `#[fenced_job(…)]` says. Options with mistakes are absent: the mistakes are in the [`Errors`].
pub(crate) struct JobOptions {
    pub(crate) lease: Option<Lease>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) renew: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) max_runtime: Option<Duration>,
    pub(crate) on_lost: OnLost,
    pub(crate) krate: Path,
}

#[derive(Clone, Copy, Default)]
pub(crate) enum OnLost {
    #[default]
    Drop,
    Signal,
}

/// What `#[terminal_write(…)]` says.
pub(crate) struct TerminalOptions {
    pub(crate) krate: Path,
}

impl JobOptions {
    pub(crate) fn parse(args: TokenStream, errors: &mut Errors) -> Self {
        let mut options = Entries::parse(args, JOB_OPTIONS, errors);
        if !options.has("lease") {
            errors.push_error(syn::Error::new(
                proc_macro2::Span::call_site(),
                "missing option `lease`: add `lease = \"group:name\"`",
            ));
        }
        let lease = options.take("lease").and_then(|entry| Lease::parse(&entry.value, errors));
        let ttl = options.take("ttl").and_then(|entry| Timed::parse(entry, errors));
        let renew = options.take("renew").and_then(|entry| Timed::parse(entry, errors));
        let wait = options.take("wait").and_then(|entry| Timed::parse(entry, errors));
        let max_runtime = options.take("max_runtime").and_then(|entry| Timed::parse(entry, errors));
        let on_lost = options.take("on_lost").and_then(|entry| on_lost(&entry, errors)).unwrap_or_default();
        let krate = options.krate(errors);

        check_ttl(ttl.as_ref(), errors);
        check_renew(renew.as_ref(), ttl.as_ref(), errors);
        if let Some(Timed { duration: Duration::ZERO, value }) = &max_runtime {
            errors.push(value, "`max_runtime` must be more than zero");
        }
        Self {
            lease,
            ttl: ttl.map(|ttl| ttl.duration),
            renew: renew.map(|renew| renew.duration),
            wait: wait.map(|wait| wait.duration),
            max_runtime: max_runtime.map(|max_runtime| max_runtime.duration),
            on_lost,
            krate,
        }
    }
}

impl TerminalOptions {
    pub(crate) fn parse(args: TokenStream, errors: &mut Errors) -> Self {
        Self { krate: Entries::parse(args, TERMINAL_OPTIONS, errors).krate(errors) }
    }
}

/// ```text
/// ttl = "10ms"
///       ^^^^^^ `ttl` (10ms) must be between 100ms and 24h
/// ```
fn check_ttl(ttl: Option<&Timed>, errors: &mut Errors) {
    if let Some(Timed { duration, value }) = ttl
        && !(MIN_TTL..=MAX_TTL).contains(duration)
    {
        let (found, min, max) = (Written(*duration), Written(MIN_TTL), Written(MAX_TTL));
        errors.push(value, format!("`ttl` ({found}) must be between {min} and {max}"));
    }
}

/// ```text
/// ttl = "30s", renew = "20s"
///                      ^^^^^ `renew` (20s) must be at most a third of `ttl` (30s)
/// ```
/// Without a `ttl` the runtime compares, because only the `Fence` knows it.
fn check_renew(renew: Option<&Timed>, ttl: Option<&Timed>, errors: &mut Errors) {
    let Some(renew) = renew else { return };
    if renew.duration.is_zero() {
        errors.push(&renew.value, "`renew` must be more than zero");
    } else if let Some(ttl) = ttl
        && renew.duration > ttl.duration / 3
    {
        let (found, ttl) = (Written(renew.duration), Written(ttl.duration));
        errors.push(&renew.value, format!("`renew` ({found}) must be at most a third of `ttl` ({ttl})"));
    }
}

fn on_lost(entry: &Entry, errors: &mut Errors) -> Option<OnLost> {
    match string(&entry.value).map(|value| value.value()).as_deref() {
        Some("drop") => Some(OnLost::Drop),
        Some("signal") => Some(OnLost::Signal),
        Some(other) => {
            let meant = diag::did_you_mean(other, ON_LOST);
            errors.push(&entry.value, format!("unknown value \"{other}\" of `on_lost`{meant}"));
            None
        }
        None => {
            errors.push(&entry.value, "`on_lost` must be \"drop\" or \"signal\"");
            None
        }
    }
}

/// A duration and where it stands.
struct Timed {
    duration: Duration,
    value: Expr,
}

impl Timed {
    fn parse(entry: Entry, errors: &mut Errors) -> Option<Self> {
        let Entry { key, value } = entry;
        let Some(text) = string(&value) else {
            let found = diag::source(&value);
            let example = if found.starts_with(|c: char| c.is_ascii_digit()) && duration::parse(&found).is_ok() {
                found
            } else {
                "30s".to_owned()
            };
            errors.push(&value, format!("`{key}` must be a string: write `{key} = \"{example}\"`"));
            return None;
        };
        match duration::parse(&text.value()) {
            Ok(duration) => Some(Self { duration, value }),
            Err(mistake) => {
                errors.push(&value, format!("`{key}` {mistake}"));
                None
            }
        }
    }
}

/// One `key = value`.
struct Entry {
    key: Ident,
    value: Expr,
}

/// The options as they stand, each known and at most once.
struct Entries {
    entries: Vec<Entry>,
    /// Named without a value that can be used: not missing, but absent.
    broken: Vec<String>,
    /// There was a value without a name.
    keyless: bool,
}

impl Entries {
    fn parse(args: TokenStream, known: &[&str], errors: &mut Errors) -> Self {
        let mut all = Self { entries: Vec::new(), broken: Vec::new(), keyless: false };
        let parser = |input: ParseStream<'_>| {
            while !input.is_empty() {
                all.parse_one(input, known, errors);
                if let Some(comma) = skip_to_comma(input)? {
                    errors.push(comma, "expected `,` before this");
                }
            }
            Ok(())
        };
        if let Err(error) = parser.parse2(args) {
            errors.push_error(error);
        }
        // A value without its key was probably meant for the first option, which is not missing then.
        if all.keyless && !all.has(known[0]) {
            all.broken.push(known[0].to_owned());
        }
        all
    }

    /// Reads one option up to its comma, or as far as it makes sense.
    fn parse_one(&mut self, input: ParseStream<'_>, known: &[&str], errors: &mut Errors) {
        let Ok(key) = input.call(Ident::parse_any) else {
            let example = known[0];
            let value = input.fork().parse::<LitStr>().map_or_else(|_| "\"…\"".to_owned(), |text| diag::source(&text));
            errors.push_error(input.error(format!("expected an option, such as `{example} = {value}`")));
            self.keyless = true;
            discard_to_comma(input);
            return;
        };
        let name = key.to_string();
        let value = if input.peek(Token![=]) {
            let equals: Token![=] = input.parse().expect("peeked");
            if input.is_empty() || input.peek(Token![,]) {
                Err(syn::Error::new_spanned(equals, format!("`{name}` needs a value: write `{name} = \"…\"`")))
            } else {
                input.parse::<Expr>()
            }
        } else {
            Err(syn::Error::new_spanned(&key, format!("`{name}` needs a value: write `{name} = \"…\"`")))
        };
        if !known.contains(&&*name) {
            errors.push(&key, format!("unknown option `{name}`{}", diag::did_you_mean(&name, known)));
            // What was probably meant is not missing.
            self.broken.extend(diag::closest(&name, known).map(str::to_owned));
            discard_to_comma(input);
            return;
        }
        if self.has(&name) {
            errors.push(&key, format!("duplicate option `{name}`: remove one"));
            discard_to_comma(input);
            return;
        }
        match value {
            Ok(value) => self.entries.push(Entry { key, value }),
            Err(error) => {
                errors.push_error(error);
                self.broken.push(name);
                discard_to_comma(input);
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name) || self.broken.iter().any(|broken| broken == name)
    }

    fn take(&mut self, name: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.key == name)?;
        Some(self.entries.swap_remove(at))
    }

    fn krate(&mut self, errors: &mut Errors) -> Path {
        let path = self.take("crate").and_then(|Entry { value, .. }| {
            let path = string(&value).and_then(|text| text.parse_with(Path::parse_mod_style).ok());
            if path.is_none() {
                errors.push(&value, "`crate` must be a path in a string, such as \"::fence_runtime\"");
            }
            path
        });
        path.unwrap_or_else(|| parse_quote!(::fence_runtime))
    }
}

/// Eats the comma, or whatever stands before it and should not: the first such token is returned.
fn skip_to_comma(input: ParseStream<'_>) -> syn::Result<Option<TokenTree>> {
    if input.is_empty() || input.parse::<Option<Token![,]>>()?.is_some() {
        return Ok(None);
    }
    let first = input.parse()?;
    discard_to_comma(input);
    input.parse::<Option<Token![,]>>()?;
    Ok(Some(first))
}

fn discard_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        let _ = input.parse::<TokenTree>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(args: &str) -> Vec<String> {
        let mut errors = Errors::default();
        JobOptions::parse(args.parse().unwrap(), &mut errors);
        errors.messages()
    }

    #[test]
    fn good_options() {
        for args in [
            r#"lease = "a""#,
            r#"lease = "a","#,
            r##"lease = r#"a"b"#, ttl = "100ms", wait = "0s""##,
            r#"crate = "crate::fence", on_lost = "signal", renew = "8h", ttl = "24h", lease = "admin:reconciliation""#,
            r#"lease = "a", renew = "10h""#,
        ] {
            assert_eq!(mistakes(args), [""; 0], "{args}");
        }
    }

    #[test]
    fn every_mistake_has_its_own_words() {
        for (args, message) in [
            ("", "missing option `lease`: add `lease = \"group:name\"`"),
            ("leese = \"a\"", "unknown option `leese`; did you mean `lease`?"),
            (
                "lease = \"a\", frequency = \"1s\"",
                "unknown option `frequency`; there is `lease`, `ttl`, `renew`, `wait`, `max_runtime`, `on_lost` and `crate`",
            ),
            ("lease = \"a\", lease = \"b\"", "duplicate option `lease`: remove one"),
            ("lease", "`lease` needs a value: write `lease = \"…\"`"),
            ("lease = ", "`lease` needs a value: write `lease = \"…\"`"),
            ("lease(\"a\")", "`lease` needs a value: write `lease = \"…\"`"),
            ("\"a\", lease = \"a\"", "expected an option, such as `lease = \"a\"`"),
            ("\"a:b\"", "expected an option, such as `lease = \"a:b\"`"),
            ("5", "expected an option, such as `lease = \"…\"`"),
            ("lease = \"a\" ttl = \"30s\"", "expected `,` before this"),
            (
                "lease = NAME",
                "`lease` must be a string literal such as \"group:name\": other expressions are not supported yet",
            ),
            ("lease = \"\"", "lease name is empty: a lease needs a name such as \"group:job\""),
            ("lease = \"a\", ttl = 30", "`ttl` must be a string: write `ttl = \"30s\"`"),
            ("lease = \"a\", ttl = 45s", "`ttl` must be a string: write `ttl = \"45s\"`"),
            ("lease = \"a\", ttl = \"30\"", "`ttl` has no unit: write \"30s\" or \"30ms\""),
            ("lease = \"a\", ttl = \"0s\"", "`ttl` (0s) must be between 100ms and 24h"),
            ("lease = \"a\", ttl = \"25h\"", "`ttl` (25h) must be between 100ms and 24h"),
            ("lease = \"a\", renew = \"0s\"", "`renew` must be more than zero"),
            ("lease = \"a\", ttl = \"30s\", renew = \"20s\"", "`renew` (20s) must be at most a third of `ttl` (30s)"),
            (
                "lease = \"a\", ttl = \"100ms\", renew = \"34ms\"",
                "`renew` (34ms) must be at most a third of `ttl` (100ms)",
            ),
            ("lease = \"a\", max_runtime = \"0ms\"", "`max_runtime` must be more than zero"),
            ("lease = \"a\", on_lost = \"sginal\"", "unknown value \"sginal\" of `on_lost`; did you mean `signal`?"),
            ("lease = \"a\", on_lost = Signal", "`on_lost` must be \"drop\" or \"signal\""),
            ("lease = \"a\", crate = fence", "`crate` must be a path in a string, such as \"::fence_runtime\""),
            ("lease = \"a\", crate = \"a b\"", "`crate` must be a path in a string, such as \"::fence_runtime\""),
        ] {
            assert_eq!(mistakes(args), [message], "{args}");
        }
    }

    #[test]
    fn all_mistakes_come_at_once() {
        assert_eq!(
            mistakes("leese = \"a\", ttl = \"1\", on_lost = \"dorp\", wait"),
            [
                "unknown option `leese`; did you mean `lease`?",
                "`wait` needs a value: write `wait = \"…\"`",
                "`ttl` has no unit: write \"1s\" or \"1ms\"",
                "unknown value \"dorp\" of `on_lost`; did you mean `drop`?",
            ]
        );
    }

    #[test]
    fn a_terminal_write_knows_one_option() {
        let mut errors = Errors::default();
        TerminalOptions::parse("lease = \"a\"".parse().unwrap(), &mut errors);
        assert_eq!(errors.messages(), ["unknown option `lease`; there is `crate`"]);
    }
}
