//! What a person sees: when, who, what.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Instant,
};

use crate::report::{End, Event, Judge};

const DIM: &str = "2";
const BOLD: &str = "1";
const CYAN: &str = "36";
const GREEN: &str = "32";
const RED: &str = "1;31";

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Demo,
    A,
    B,
    /// The only worker of `--once`.
    Job,
}

impl Who {
    /// The name and its colour.
    fn label(self) -> (&'static str, &'static str) {
        match self {
            Self::Demo => ("demo", DIM),
            Self::A => ("A", CYAN),
            Self::B => ("B", GREEN),
            Self::Job => ("job", CYAN),
        }
    }
}

/// Prints lines with the time since it was made. Colour only where a terminal shows it and nobody minds.
pub(crate) struct Timeline {
    start: Instant,
    colour: bool,
    /// The last fifth of a scan that was told: a large file shall not fill the screen.
    fifth: i64,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        Self { start: Instant::now(), colour, fifth: 0 }
    }

    /// A line without time, above or below the others.
    pub(crate) fn heading(&self, text: impl AsRef<str>) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{}", self.paint(BOLD, text.as_ref()))
    }

    /// One line: when, who, what.
    pub(crate) fn line(&self, who: Who, text: impl AsRef<str>) -> io::Result<()> {
        self.styled(who, text.as_ref(), "")
    }

    /// The result, for programs: one JSON object on one line, after which nothing follows.
    pub(crate) fn last_line(&self, result: &impl serde::Serialize) -> anyhow::Result<()> {
        writeln!(io::stdout().lock(), "{}", serde_json::to_string(result)?)?;
        Ok(())
    }

    fn styled(&self, who: Who, text: &str, style: &str) -> io::Result<()> {
        let time = format!("{:>6.2} s", self.start.elapsed().as_secs_f64());
        let (name, colour) = who.label();
        let (time, name) = (self.paint(DIM, &time), self.paint(colour, &format!("{name:<4}")));
        let mut out = io::stdout().lock();
        writeln!(out, "{time}  {name}  {}", self.paint(style, text))?;
        out.flush()
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.colour && !style.is_empty() { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// What a worker says, in words.
    pub(crate) fn event(&mut self, who: Who, event: &Event) -> io::Result<()> {
        match event {
            Event::Started { pid } => self.line(who, format!("starts as process {pid} and asks for the lease")),
            Event::Holds { token, .. } => self.line(who, format!("holds the lease, with fencing token {token}")),
            Event::Claimed { run, removed: 0 } => {
                self.fifth = 0;
                self.line(who, format!("claims run {run}"))
            }
            Event::Claimed { run, removed } => {
                self.fifth = 0;
                let removed = counted(*removed as i64, "difference");
                self.line(who, format!("claims run {run} and deletes {removed} that the previous owner left"))
            }
            Event::Scanned { scanned, total, published } => {
                let fifth = scanned * 5 / (*total).max(1);
                if fifth == self.fifth {
                    return Ok(());
                }
                self.fifth = fifth;
                let (bar, found) = (bar(*scanned, *total), counted(*published, "difference"));
                self.line(
                    who,
                    format!("{bar}  {} of {} compared, {found} published", grouped(*scanned), grouped(*total)),
                )
            }
            Event::Ready => self.line(who, "has published everything; only the success mark is missing"),
            Event::Completing { believes_held: true } => self.line(who, "tries to mark the run as succeeded"),
            Event::Completing { believes_held: false } => self.line(
                who,
                "finds by its own clock that the lease ran out, and tries to mark the run as succeeded all the same",
            ),
            Event::Completed => self.styled(who, "marks the run as succeeded", BOLD),
            Event::Refused { by, reason } => {
                let by = match by {
                    Judge::Database => "REFUSED by the database",
                    Judge::Condition => "REFUSED, but only by the condition of its own statement",
                    Judge::Nobody => "FAILED, for another reason",
                };
                self.styled(who, by, RED)?;
                self.line(who, format!("  {reason}"))
            }
            Event::Ended { end: End::Succeeded, .. } => self.line(who, "ends"),
            Event::Ended { end, reason } => {
                let end = match end {
                    End::Lost => "gives up: it has lost the lease",
                    End::Contended => "gives up: somebody else holds the lease",
                    _ => "fails",
                };
                self.line(who, end)?;
                reason.iter().try_for_each(|reason| self.line(who, format!("  {reason}")))
            }
        }
    }
}

/// `4917` as `4,917`.
pub(crate) fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 difference`, `72 differences`.
pub(crate) fn counted(number: i64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

fn bar(done: i64, total: i64) -> String {
    const WIDTH: i64 = 10;
    let full = (done * WIDTH / total.max(1)).clamp(0, WIDTH) as usize;
    format!("{}{}", "#".repeat(full), ".".repeat(WIDTH as usize - full))
}
