//! Lease names and their templates, by the rules of the runtime's `LeaseName`.

use syn::{Ident, ext::IdentExt, parse::Parser};

/// The longest lease name, in bytes of UTF-8.
const LONGEST: usize = 190;

/// A piece of a lease name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    /// `{tenant_id}`: a parameter of the job.
    Placeholder(String),
}

/// Reads a name or a template; the error goes behind "lease name …".
///
/// `{{` and `}}` stand for braces.
pub(crate) fn parse(name: &str) -> Result<Vec<Part>, String> {
    if name.is_empty() {
        return Err("is empty: a lease needs a name such as \"group:job\"".into());
    }
    let parts = split(name)?;
    let texts = || parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
    // A value has at least one byte.
    let bytes = texts().map(String::len).sum::<usize>() + (parts.len() - texts().count());
    if bytes > LONGEST {
        return Err(format!("has {bytes} bytes: at most {LONGEST} are allowed"));
    }
    if let Some(c) = texts().flat_map(|text| text.chars()).find(|c| c.is_control()) {
        return Err(format!("contains the control character {c:?}: remove it"));
    }
    if name.trim() != name {
        return Err("begins or ends with white space: remove it".into());
    }
    if parts.windows(2).any(|pair| matches!(pair, [Part::Placeholder(_), Part::Placeholder(_)])) {
        return Err("has two placeholders side by side, of which different values make one name: write something \
                    between them, such as `{a}:{b}`"
            .into());
    }
    Ok(parts)
}

fn split(name: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = name;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let (brace, behind) = rest[at..].split_at(1);
        if behind.starts_with(brace) {
            text.push_str(brace);
            rest = &behind[1..];
            continue;
        }
        let end = behind.find('}').filter(|_| brace == "{");
        let end = end
            .ok_or_else(|| format!("has a `{brace}` alone: write `{{parameter}}`, or `{brace}{brace}` for a brace"))?;
        let placeholder = behind[..end].trim();
        let Ok(placeholder) = Ident::parse_any.parse_str(placeholder) else {
            return Err(format!(
                "has the placeholder `{{{}}}`: a placeholder is the name of a parameter, such as `{{tenant_id}}`",
                &behind[..end]
            ));
        };
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(Part::Placeholder(plain(&placeholder)));
        rest = &behind[end + 1..];
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

/// A parameter's name as a placeholder has it.
pub(crate) fn plain(name: &Ident) -> String {
    name.unraw().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_fine() {
        for name in ["a", "admin:reconciliation", "größe", "a b", &"x".repeat(190), "日本"] {
            assert_eq!(parse(name).unwrap(), [Part::Text(name.to_owned())], "{name}");
        }
        assert_eq!(parse("{{a}}").unwrap(), [Part::Text("{a}".into())]);
    }

    #[test]
    fn templates() {
        let text = |text: &str| Part::Text(text.into());
        let placeholder = |name: &str| Part::Placeholder(name.into());
        for (name, parts) in [
            ("tenant:{tenant_id}:billing", vec![text("tenant:"), placeholder("tenant_id"), text(":billing")]),
            ("{a}", vec![placeholder("a")]),
            ("{ a }:{b}", vec![placeholder("a"), text(":"), placeholder("b")]),
            ("{type}:{r#fn}", vec![placeholder("type"), text(":"), placeholder("fn")]),
            ("{{{a}}}", vec![text("{"), placeholder("a"), text("}")]),
            ("a:{größe}", vec![text("a:"), placeholder("größe")]),
        ] {
            assert_eq!(parse(name).unwrap(), parts, "{name}");
        }
        assert!(parse(&format!("{}{{a}}", "x".repeat(189))).is_ok());
    }

    #[test]
    fn every_rule_has_its_own_words() {
        for (name, rule) in [
            ("", "is empty: a lease needs a name such as \"group:job\""),
            (&*"ö".repeat(96), "has 192 bytes: at most 190 are allowed"),
            (&*format!("{}{{a}}", "x".repeat(190)), "has 191 bytes: at most 190 are allowed"),
            ("a\nb", "contains the control character '\\n': remove it"),
            ("a\u{85}b", "contains the control character '\\u{85}': remove it"),
            (" a", "begins or ends with white space: remove it"),
            ("a\u{3000}", "begins or ends with white space: remove it"),
            ("{a", "has a `{` alone: write `{parameter}`, or `{{` for a brace"),
            ("a}", "has a `}` alone: write `{parameter}`, or `}}` for a brace"),
            ("a:{}", "has the placeholder `{}`: a placeholder is the name of a parameter, such as `{tenant_id}`"),
            ("a:{0}", "has the placeholder `{0}`: a placeholder is the name of a parameter, such as `{tenant_id}`"),
            ("a:{b:?}", "has the placeholder `{b:?}`: a placeholder is the name of a parameter, such as `{tenant_id}`"),
            ("a:{b.c}", "has the placeholder `{b.c}`: a placeholder is the name of a parameter, such as `{tenant_id}`"),
            (
                "{a}{b}",
                "has two placeholders side by side, of which different values make one name: write something between \
                 them, such as `{a}:{b}`",
            ),
        ] {
            assert_eq!(parse(name).unwrap_err(), rule, "{name:?}");
        }
    }
}
