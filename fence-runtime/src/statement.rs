//! Is a statement a write? A `SELECT` that reports one row is no proof of one.

/// The statements that may be a terminal write.
const WRITES: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"];
/// What a statement behind WITH may be, besides those.
const READS: [&str; 3] = ["SELECT", "VALUES", "TABLE"];

/// What differs in how databases read a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Comments nest; `$tag$ … $tag$` and `E'…\'…'` are strings.
    Postgres,
    /// `[…]` is a name.
    Sqlite,
    /// Strings are in single or double quotes and have backslashes; `#` begins a comment, `--` only before white space; what stands in
    /// `/*! … */` runs.
    MySql,
}

/// Why a statement cannot be a terminal write; `None`: it can.
pub(crate) fn why_not_a_write(sql: &str, dialect: Dialect) -> Option<String> {
    let mut words = Words { rest: sql, depth: 0, dialect };
    let Some(first) = words.next_word() else {
        return Some("the statement is empty".into());
    };
    let verb = if first.eq_ignore_ascii_case("WITH") {
        loop {
            match words.next_word() {
                Some(word) if WRITES.iter().chain(&READS).any(|verb| word.eq_ignore_ascii_case(verb)) => break word,
                Some(_) => {}
                None => break first,
            }
        }
    } else {
        first
    };
    if !WRITES.iter().any(|write| verb.eq_ignore_ascii_case(write)) {
        return Some(format!(
            "{} is no terminal write: give it one INSERT, UPDATE, DELETE, MERGE or REPLACE",
            verb.to_ascii_uppercase()
        ));
    }
    words
        .has_second_statement()
        .then(|| "a terminal write is one statement: run the others through `executor()`".into())
}

/// The words of a statement outside parentheses, strings, quoted names and comments.
struct Words<'s> {
    rest: &'s str,
    depth: usize,
    dialect: Dialect,
}

impl<'s> Words<'s> {
    fn next_word(&mut self) -> Option<&'s str> {
        while let Some(c) = self.skip_quoted() {
            if self.depth == 0 && (c.is_alphabetic() || c == '_') {
                let end =
                    self.rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                return Some(word);
            }
            self.step(c);
        }
        None
    }

    /// Looks for something behind a semicolon at the top level.
    fn has_second_statement(&mut self) -> bool {
        let mut ended = false;
        while let Some(c) = self.skip_quoted() {
            if ended && !c.is_whitespace() && c != ';' {
                return true;
            }
            ended |= c == ';' && self.depth == 0;
            self.step(c);
        }
        false
    }

    fn step(&mut self, c: char) {
        match c {
            '(' => self.depth += 1,
            ')' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.rest = &self.rest[c.len_utf8()..];
    }

    /// `2--1` is a number there.
    fn is_line_comment(&self) -> bool {
        self.dialect != Dialect::MySql
            || self.rest[2..].chars().next().is_none_or(|c| c.is_whitespace() || c.is_control())
    }

    /// Length of what is left of the line.
    fn line(&self) -> usize {
        self.rest.find('\n').map_or(self.rest.len(), |end| end + 1)
    }

    /// The next character that is not inside a comment, a string or a quoted name.
    fn skip_quoted(&mut self) -> Option<char> {
        loop {
            let c = self.rest.chars().next()?;
            let skipped = match c {
                '-' if self.rest.starts_with("--") && self.is_line_comment() => self.line(),
                '#' if self.dialect == Dialect::MySql => self.line(),
                '/' if self.dialect == Dialect::MySql && ["/*!", "/*M!"].iter().any(|c| self.rest.starts_with(c)) => 3,
                '/' if self.rest.starts_with("/*") => comment(self.rest, self.dialect == Dialect::Postgres),
                'e' | 'E' if self.dialect == Dialect::Postgres && self.rest[1..].starts_with('\'') => {
                    1 + escaped(&self.rest[1..])
                }
                '\'' | '"' if self.dialect == Dialect::MySql => escaped(self.rest),
                '\'' | '"' => quoted(self.rest, c),
                '`' if self.dialect != Dialect::Postgres => quoted(self.rest, c),
                '[' if self.dialect == Dialect::Sqlite => quoted(self.rest, ']'),
                '$' if self.dialect == Dialect::Postgres => match dollar_quoted(self.rest) {
                    Some(end) => end,
                    None => return Some(c),
                },
                _ => return Some(c),
            };
            self.rest = &self.rest[skipped..];
        }
    }
}

/// Length of a comment.
fn comment(text: &str, nests: bool) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") && (nests || depth == 0) {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Length of a string or quoted name; a doubled quote is two of them, which comes to the same.
fn quoted(text: &str, quote: char) -> usize {
    text[1..].find(quote).map_or(text.len(), |end| end + 2)
}

/// Length of a string in which a backslash hides the next character; its first is the quote.
fn escaped(text: &str) -> usize {
    let quote = text.chars().next();
    let mut hidden = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if hidden => hidden = false,
            '\\' => hidden = true,
            c if Some(c) == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a `$tag$ … $tag$` string; `None` for a parameter such as `$1`.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = &text[..=text[1..].find('$')? + 1];
    let inner = &tag[1..tag.len() - 1];
    if inner.starts_with(|c: char| c.is_ascii_digit()) || !inner.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return None;
    }
    Some(text[tag.len()..].find(tag).map_or(text.len(), |end| end + 2 * tag.len()))
}

#[cfg(test)]
mod tests {
    use super::{Dialect, why_not_a_write};

    #[test]
    fn writes_are_writes() {
        for sql in [
            "UPDATE runs SET status = $1",
            "  insert into t values (1);",
            "-- first\nDELETE FROM t",
            "/* a /* nested */ comment */ REPLACE INTO t VALUES (1)",
            "WITH d AS (DELETE FROM a RETURNING *) INSERT INTO b SELECT * FROM d",
            "WITH RECURSIVE n(x) AS (VALUES (1) UNION SELECT x + 1 FROM n) UPDATE t SET a = 1",
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
            "UPDATE t SET a = 'x; SELECT 1' ; -- done; really",
            "UPDATE t SET a = $q$ ; SELECT $q$ WHERE b = $1",
            "UPDATE t SET a = 'it''s; fine'",
            "UPDATE \"a;b\" SET x = 1",
        ] {
            assert_eq!(why_not_a_write(sql, Dialect::Postgres), None, "{sql}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        for (sql, part) in [
            ("SELECT 1", "SELECT"),
            ("", "empty"),
            ("-- only a comment", "empty"),
            ("CREATE TABLE t (a int)", "CREATE"),
            ("TRUNCATE t", "TRUNCATE"),
            ("EXPLAIN UPDATE t SET a = 1", "EXPLAIN"),
            ("WITH w AS (UPDATE t SET a = 1 RETURNING 1) SELECT count(*) FROM w", "SELECT"),
            ("WITH \"update\" AS (SELECT 1) SELECT * FROM \"update\"", "SELECT"),
            ("UPDATE t SET a = 1; SELECT 1", "one statement"),
            ("UPDATE t SET a = 1; /* x */ DELETE FROM t", "one statement"),
            ("COMMIT", "COMMIT"),
        ] {
            let why = why_not_a_write(sql, Dialect::Postgres).unwrap_or_else(|| panic!("{sql} passed"));
            assert!(why.contains(part), "{sql}: {why}");
        }
    }

    #[test]
    fn a_second_statement_is_found_in_each_dialect() {
        for (sql, dialect) in [
            ("UPDATE t SET v = 1 # 2 WHERE id = 9; UPDATE t SET v = 1", Dialect::Postgres),
            ("UPDATE t SET v = E'\\''; UPDATE t SET v = 1 --'", Dialect::Postgres),
            ("UPDATE t SET v = 1 /* /* */; UPDATE t SET v = 1", Dialect::Sqlite),
            ("UPDATE t AS [a'b] SET v = 1; UPDATE t SET v = 1 --'", Dialect::Sqlite),
            ("UPDATE t SET v = $a$; UPDATE t SET v = 1", Dialect::Sqlite),
            ("UPDATE t SET v = '\\''; UPDATE t SET v = 1 -- '", Dialect::MySql),
            ("UPDATE t SET v = \"\\\"\"; UPDATE t SET v = 1 -- \"", Dialect::MySql),
            ("UPDATE t SET v = 1 # '\n; UPDATE t SET v = 1 -- '", Dialect::MySql),
            ("UPDATE t SET v = 2--1; UPDATE t SET v = 1", Dialect::MySql),
            ("UPDATE t SET v = 1 /*!; UPDATE t SET v = 1 */", Dialect::MySql),
            ("UPDATE t SET v = 1 /*M!100600 ; UPDATE t SET v = 1 */", Dialect::MySql),
            ("UPDATE t AS `a'b` SET v = 1; UPDATE t SET v = 1 -- '", Dialect::MySql),
        ] {
            let why = why_not_a_write(sql, dialect).unwrap_or_else(|| panic!("{sql} passed"));
            assert!(why.contains("one statement"), "{sql}: {why}");
        }
    }
}
