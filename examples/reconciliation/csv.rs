//! Reads a ledger from a CSV file; a line that is not right is an error with file, line and reason.

use std::{
    collections::BTreeMap,
    fmt, fs,
    num::IntErrorKind,
    path::{Path, PathBuf},
};

use ::csv::{ErrorKind, ReaderBuilder, StringRecord};

use crate::ledger::{Entry, Ledger};

const HEADER: [&str; 3] = ["reference", "booked_on", "amount_cents"];
/// What a bank carries as remittance information at most, so a longer one is a file gone wrong.
const LONGEST_REFERENCE: usize = 140;
const DATE: &[time::format_description::BorrowedFormatItem<'static>] =
    time::macros::format_description!("[year]-[month]-[day]");

/// Why a file is refused.
#[derive(Debug)]
pub(crate) struct BadFile {
    file: PathBuf,
    line: Option<u64>,
    reason: String,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for BadFile {}

/// The entries of a file by their references.
pub(crate) fn read(file: &Path) -> Result<Ledger, BadFile> {
    let bad = |line: Option<u64>, reason: String| BadFile { file: file.to_owned(), line, reason };
    let bytes = fs::read(file).map_err(|error| bad(None, format!("cannot be read: {error}")))?;
    // Every count of fields is let through: our own message says more than the reader's.
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(&bytes[..]);
    let mut record = StringRecord::new();
    let mut seen_header = false;
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let mut ledger = Ledger::new();
    loop {
        let before = reader.position().clone();
        let line = before.line() + blank_lines(&bytes, before.byte());
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                let reason = match error.kind() {
                    ErrorKind::Utf8 { .. } => "is not UTF-8: save the file as UTF-8".to_owned(),
                    _ => error.to_string(),
                };
                return Err(bad(Some(line), reason));
            }
        }
        if !seen_header {
            check_header(&record).map_err(|reason| bad(Some(line), reason))?;
            seen_header = true;
            continue;
        }
        let (reference, entry) = entry(&record).map_err(|reason| bad(Some(line), reason))?;
        if let Some(first) = lines.insert(reference.clone(), line) {
            return Err(bad(Some(line), format!("the reference {reference:?} stands already in line {first}")));
        }
        ledger.insert(reference, entry);
    }
    if seen_header {
        Ok(ledger)
    } else {
        Err(bad(None, format!("is empty: the first line must be `{}`", HEADER.join(","))))
    }
}

/// The reader skips blank lines, but counts a record from the first of them.
fn blank_lines(bytes: &[u8], from: u64) -> u64 {
    let rest = usize::try_from(from).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
    rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).filter(|byte| **byte == b'\n').count() as u64
}

fn check_header(record: &StringRecord) -> Result<(), String> {
    if record.iter().eq(HEADER) {
        return Ok(());
    }
    let found: Vec<&str> = record.iter().collect();
    Err(format!("the header is {}, expected {:?}", shown(&found.join(",")), HEADER.join(",")))
}

fn entry(record: &StringRecord) -> Result<(String, Entry), String> {
    let [reference, booked_on, amount] = fields(record)?;
    if reference.is_empty() {
        return Err("the reference is empty".into());
    }
    if reference.contains(['\n', '\r']) {
        return Err("the reference runs over the end of the line: is a quote left open?".into());
    }
    if reference.chars().count() > LONGEST_REFERENCE {
        return Err(format!("the reference {} has more than {LONGEST_REFERENCE} characters", shown(reference)));
    }
    if reference.trim() != reference || reference.contains(char::is_control) {
        return Err(format!(
            "the reference {} has white space around it or a control character in it",
            shown(reference)
        ));
    }
    // The length keeps out signs and years of five digits, which the parser would take.
    if booked_on.len() != 10 || time::Date::parse(booked_on, DATE).is_err() {
        return Err(format!("booked_on {} is no date: expected year-month-day such as 2026-03-31", shown(booked_on)));
    }
    let amount_cents = amount.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
            format!("amount_cents {} does not fit into 64 bits", shown(amount))
        }
        _ => format!("amount_cents {} is no whole number of cents such as -1250", shown(amount)),
    })?;
    Ok((reference.to_owned(), Entry { booked_on: booked_on.to_owned(), amount_cents }))
}

fn fields(record: &StringRecord) -> Result<[&str; 3], String> {
    let fields: Vec<&str> = record.iter().collect();
    let open = if fields.iter().any(|field| field.contains('\n')) { ": is a quote left open?" } else { "" };
    <[&str; 3]>::try_from(fields).map_err(|fields| {
        format!("has {} field(s), expected {} ({}){open}", fields.len(), HEADER.len(), HEADER.join(","))
    })
}

/// What stands in the file, but not all of it: after a quote left open a field is as long as the rest of the file.
fn shown(text: &str) -> String {
    const ENOUGH: usize = 50;
    match text.char_indices().nth(ENOUGH) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
