//! What fence says to `tracing`, kept for tests to read.

use std::{
    fmt,
    sync::{Mutex, Once},
    thread::{self, ThreadId},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// One event.
#[derive(Clone, Debug)]
pub struct Line {
    /// How loud.
    pub level: Level,
    /// What was said.
    pub message: String,
    /// And about what.
    pub fields: Vec<(&'static str, String)>,
    thread: ThreadId,
}

impl Line {
    /// What the event says about this.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str())
    }
}

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

/// From now on this process keeps what fence says.
pub fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Capture).expect("nobody else listens"));
}

/// What the keeper that holds this lease has said, about all its leases. Leases of different tests need different names.
pub fn of_keeper(lease: &str) -> Vec<Line> {
    let lines = LINES.lock().unwrap();
    let of_lease = |line: &&Line| line.field("lease") == Some(lease) && line.field("keeper").is_some();
    let Some(thread) = lines.iter().find(of_lease).map(|line| line.thread) else { return Vec::new() };
    lines.iter().filter(|line| line.thread == thread).cloned().collect()
}

/// Everything so far; begins anew.
pub fn take() -> Vec<Line> {
    std::mem::take(&mut LINES.lock().unwrap())
}

struct Capture;

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fence_runtime")
    }

    fn event(&self, event: &Event<'_>) {
        let thread = thread::current();
        let mut line =
            Line { level: *event.metadata().level(), message: String::new(), fields: Vec::new(), thread: thread.id() };
        event.record(&mut line);
        if thread.name() == Some("fence-keeper") {
            line.fields.push(("keeper", String::new()));
        }
        LINES.lock().unwrap().push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
}

impl Line {
    fn put(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push((name, value)),
        }
    }
}
