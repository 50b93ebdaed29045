//! Durations as people write them: `500ms`, `30s`, `1m30s`, `2h`.

use std::{fmt, time::Duration};

const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Longer than anybody means it, and short enough for every sum that the runtime makes.
const LONGEST: u64 = 365 * 24 * 3_600_000;

/// Reads a duration; the error goes behind "`ttl` …".
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text.trim().is_empty() {
        return Err("is empty: write a number with a unit, such as \"30s\"".into());
    }
    if text.contains(char::is_whitespace) {
        let closed_up: String = text.split_whitespace().collect();
        parse(&closed_up)?;
        return Err(format!("must not contain white space: write \"{closed_up}\""));
    }
    let mut total: u64 = 0;
    let mut last_unit = u64::MAX;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, unit, tail) = segment(rest, text)?;
        let Some((_, millis)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(unknown_unit(number, unit));
        };
        if *millis >= last_unit {
            return Err(format!("names `{unit}` out of order: write hours, minutes, seconds, milliseconds, each once"));
        }
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*millis))
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= LONGEST)
            .ok_or_else(|| format!("({text}) is longer than a year"))?;
        (last_unit, rest) = (*millis, tail);
    }
    Ok(Duration::from_millis(total))
}

/// The leading number and its unit, and what follows.
fn segment<'a>(rest: &'a str, whole: &str) -> Result<(&'a str, &'a str, &'a str), String> {
    let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let (unit, after) = tail.split_at(tail.find(|c: char| !c.is_alphabetic() && c != 'µ').unwrap_or(tail.len()));
    if number.is_empty() {
        return Err(if rest.starts_with('-') {
            "cannot be negative".into()
        } else {
            format!("(\"{whole}\") must begin with a number: write, for example, \"30s\"")
        });
    }
    if unit.is_empty() {
        return Err(if tail.starts_with(['.', ',']) {
            format!("(\"{whole}\") must use whole numbers: write, for example, \"1500ms\" for one and a half seconds")
        } else if tail.is_empty() {
            format!("has no unit: write \"{whole}s\" or \"{whole}ms\"")
        } else {
            format!("(\"{whole}\") must be numbers with units: write, for example, \"1m30s\"")
        });
    }
    Ok((number, unit, after))
}

fn unknown_unit(number: &str, unit: &str) -> String {
    let meant = match unit.to_lowercase().as_str() {
        "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => "ms",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        _ => return format!("has the unknown unit `{unit}`: the units are `ms`, `s`, `m` and `h`"),
    };
    format!("has the unknown unit `{unit}`: write \"{number}{meant}\"")
}

/// A duration the way [`parse`] reads it.
pub(crate) struct Written(pub(crate) Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, millis) in UNITS {
            if rest >= millis {
                write!(f, "{}{unit}", rest / millis)?;
                rest %= millis;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_alike() {
        for (text, millis) in [
            ("0s", 0),
            ("1ms", 1),
            ("500ms", 500),
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("1h2m3s4ms", 3_723_004),
            ("24h", 86_400_000),
        ] {
            let duration = parse(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(Written(duration).to_string(), text);
        }
        assert_eq!(Written(parse("90s").unwrap()).to_string(), "1m30s");
        assert_eq!(parse("007s").unwrap(), Duration::from_secs(7));
        assert!(parse("8760h").is_ok());
    }

    #[test]
    fn every_mistake_has_its_own_words() {
        for (text, message) in [
            ("", "is empty: write a number with a unit, such as \"30s\""),
            ("  ", "is empty: write a number with a unit, such as \"30s\""),
            ("30", "has no unit: write \"30s\" or \"30ms\""),
            ("s", "(\"s\") must begin with a number: write, for example, \"30s\""),
            ("30 s", "must not contain white space: write \"30s\""),
            ("30 sec", "has the unknown unit `sec`: write \"30s\""),
            ("1m 30", "has no unit: write \"1m30s\" or \"1m30ms\""),
            ("-1s", "cannot be negative"),
            ("1.5s", "(\"1.5s\") must use whole numbers: write, for example, \"1500ms\" for one and a half seconds"),
            ("30sec", "has the unknown unit `sec`: write \"30s\""),
            ("30S", "has the unknown unit `S`: write \"30s\""),
            ("5min", "has the unknown unit `min`: write \"5m\""),
            ("1d", "has the unknown unit `d`: the units are `ms`, `s`, `m` and `h`"),
            ("10µs", "has the unknown unit `µs`: the units are `ms`, `s`, `m` and `h`"),
            ("1s2m", "names `m` out of order: write hours, minutes, seconds, milliseconds, each once"),
            ("1s1s", "names `s` out of order: write hours, minutes, seconds, milliseconds, each once"),
            ("1s+", "(\"1s+\") must begin with a number: write, for example, \"30s\""),
            ("1_000ms", "(\"1_000ms\") must be numbers with units: write, for example, \"1m30s\""),
            ("8761h", "(8761h) is longer than a year"),
            ("99999999999999999999s", "(99999999999999999999s) is longer than a year"),
        ] {
            assert_eq!(parse(text).unwrap_err(), message, "{text:?}");
        }
    }
}
