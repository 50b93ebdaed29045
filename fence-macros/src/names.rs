//! The rules of lease names, as the runtime's `LeaseName` has them.

/// The longest lease name, in bytes of UTF-8.
const LONGEST: usize = 190;

/// Which rule a lease name breaks; goes behind "lease name …".
pub(crate) fn broken_rule(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("is empty: a lease needs a name such as \"group:job\"".into());
    }
    if name.len() > LONGEST {
        return Some(format!("has {} bytes: at most {LONGEST} are allowed", name.len()));
    }
    if let Some(c) = name.chars().find(|c| c.is_control()) {
        return Some(format!("contains the control character {c:?}: remove it"));
    }
    if name.trim() != name {
        return Some("begins or ends with white space: remove it".into());
    }
    // Templates will give braces a meaning, so a literal one must not get into tables before that.
    name.contains(['{', '}'])
        .then(|| "contains a brace: templates are not supported yet, write a name without `{` and `}`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_fine() {
        for name in ["a", "admin:reconciliation", "größe", "a b", &"x".repeat(190), "日本"] {
            assert_eq!(broken_rule(name), None, "{name}");
        }
    }

    #[test]
    fn every_rule_has_its_own_words() {
        for (name, rule) in [
            ("", "is empty: a lease needs a name such as \"group:job\""),
            (&*"ö".repeat(96), "has 192 bytes: at most 190 are allowed"),
            ("a\nb", "contains the control character '\\n': remove it"),
            ("a\u{85}b", "contains the control character '\\u{85}': remove it"),
            (" a", "begins or ends with white space: remove it"),
            ("a\u{3000}", "begins or ends with white space: remove it"),
            ("tenant:{id}", "contains a brace: templates are not supported yet, write a name without `{` and `}`"),
        ] {
            assert_eq!(broken_rule(name).as_deref(), Some(rule), "{name:?}");
        }
    }
}
