//! A worker process as the demo sees it: its events, its standard input, and the signals that stop and continue it.

use std::{
    io,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    report::Event,
    worker::{self, Order},
};

/// Longer than anything in the demo takes without a word; after that something is wrong.
const SILENCE: Duration = Duration::from_secs(60);

/// A child process. Dropped, it is killed and gone: also when it is stopped, also when the demo fails half-way.
pub(crate) struct Worker {
    name: String,
    child: Child,
    orders: ChildStdin,
    events: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts this very program as a worker.
    pub(crate) async fn start(order: &Order) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("this program does not find itself")?);
        command.arg(worker::ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // Its own process group: Ctrl-C reaches the demo alone, which then ends its workers. And should the demo be
        // killed while a worker is stopped, the system wakes a stopped group that lost its parent, with a SIGHUP.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().context("a worker process could not be started")?;
        let orders = child.stdin.take().context("a worker has no standard input")?;
        let events = child.stdout.take().context("a worker has no standard output")?;
        let mut worker = Self { name: order.name.clone(), child, orders, events: BufReader::new(events).lines() };
        worker.send(&serde_json::to_string(order)?).await?;
        Ok(worker)
    }

    /// Writes a line to the worker's standard input; a stopped worker reads it once it is continued.
    pub(crate) async fn send(&mut self, line: &str) -> anyhow::Result<()> {
        let line = format!("{line}\n");
        let sent = self.orders.write_all(line.as_bytes()).await;
        sent.with_context(|| format!("worker {} does not listen", self.name))
    }

    /// What the worker says next.
    pub(crate) async fn event(&mut self) -> anyhow::Result<Event> {
        match tokio::time::timeout(SILENCE, self.events.next_line()).await {
            Ok(Ok(Some(line))) => {
                serde_json::from_str(&line).with_context(|| format!("worker {} said {line:?}", self.name))
            }
            Ok(Ok(None)) => match self.child.wait().await {
                Ok(status) => bail!("worker {} died before its job was over: {status}", self.name),
                Err(error) => bail!("worker {} died before its job was over: {error}", self.name),
            },
            Ok(Err(error)) => bail!("worker {} cannot be heard: {error}", self.name),
            Err(_) => bail!("worker {} has said nothing for {} s", self.name, SILENCE.as_secs()),
        }
    }

    /// Stops the process as Ctrl-Z or a virtual machine's pause would, and returns when all its threads stand.
    #[cfg(unix)]
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
        const SLOW: Duration = Duration::from_secs(5);

        let pid = self.pid()?;
        rustix::process::kill_process(pid, Signal::STOP)?;
        // NOWAIT looks without taking the news away from tokio, which waits for the same child.
        let news = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let sent = Instant::now();
        while sent.elapsed() < SLOW {
            match waitid(WaitId::Pid(pid), news)? {
                Some(status) if status.stopped() => return Ok(()),
                Some(_) => bail!("worker {} died before it could be stopped", self.name),
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        bail!("worker {} does not stop", self.name)
    }

    /// Lets a stopped process go on.
    #[cfg(unix)]
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        Ok(rustix::process::kill_process(self.pid()?, rustix::process::Signal::CONT)?)
    }

    #[cfg(unix)]
    fn pid(&self) -> anyhow::Result<rustix::process::Pid> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        pid.with_context(|| format!("worker {} is gone", self.name))
    }

    #[cfg(not(unix))]
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        bail!("{}", crate::demo::NEEDS_UNIX)
    }

    #[cfg(not(unix))]
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        bail!("{}", crate::demo::NEEDS_UNIX)
    }

    /// The process, as the system numbers it.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the process is gone.
    pub(crate) async fn gone(&mut self) -> io::Result<()> {
        self.child.wait().await.map(drop)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Not only asked to die, but seen dead: it must not touch a directory that is about to be removed.
        let _ = self.child.start_kill();
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
