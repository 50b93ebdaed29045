//! A TCP proxy on 127.0.0.1 that passes, delays, holds, swallows or cuts, and counts round trips.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, watch},
    task::JoinHandle,
};

/// What happens to what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Pass,
    /// Every piece, in either direction, is this much later.
    Delay(Duration),
    /// Nothing moves until the mode changes; then it goes on and nothing is lost: a stalled network, `docker pause`.
    Hold,
    /// Everything, in either direction, disappears for ever: a black hole.
    Swallow,
    /// Requests arrive, answers disappear: what was asked for may well have been done.
    SwallowAnswers,
    /// Connections are closed, new ones too.
    Cut,
}

/// Connect options that can lead through a proxy.
pub trait Route: Clone {
    /// `host:port` of the server.
    fn server(&self) -> String;
    /// The same server, through this port of 127.0.0.1.
    fn through(&self, port: u16) -> Self;
}

impl Route for sqlx::postgres::PgConnectOptions {
    fn server(&self) -> String {
        format!("{}:{}", self.get_host(), self.get_port())
    }

    fn through(&self, port: u16) -> Self {
        self.clone().host("127.0.0.1").port(port)
    }
}

impl Route for sqlx::mysql::MySqlConnectOptions {
    fn server(&self) -> String {
        format!("{}:{}", self.get_host(), self.get_port())
    }

    fn through(&self, port: u16) -> Self {
        self.clone().host("127.0.0.1").port(port)
    }
}

/// A proxy; it ends with the value.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

struct Shared {
    mode: watch::Sender<Mode>,
    /// The mode that begins there.
    trap: Mutex<Option<(At, Fault)>>,
    /// What was severed is delivered.
    delivered: watch::Sender<bool>,
    round_trips: AtomicU64,
    connections: AtomicU64,
    open: AtomicU64,
}

/// What a trap does.
#[derive(Clone, Copy)]
enum Fault {
    /// To all connections.
    Mode(Mode),
    /// To its own.
    Sever,
}

/// Where a trap springs.
enum At {
    /// At the first request that contains these bytes.
    Bytes(Vec<u8>),
    /// When so many more pieces, in either direction, have passed.
    Pieces(u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

impl Proxy {
    /// A proxy before this server (`host:port`).
    pub async fn to(server: impl Into<String>) -> std::io::Result<Self> {
        let server = server.into();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            mode: watch::Sender::new(Mode::Pass),
            trap: Mutex::new(None),
            delivered: watch::Sender::new(false),
            round_trips: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
        });
        let listener = tokio::spawn(accept(listener, server, Arc::clone(&shared)));
        Ok(Self { address, shared, listener })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// From now on.
    pub fn set(&self, mode: Mode) {
        *self.shared.trap.lock().unwrap() = None;
        self.shared.mode.send_replace(mode);
    }

    /// Closes every connection, and then lets new ones pass.
    pub async fn cut(&self) {
        self.set(Mode::Cut);
        let gone = async {
            while self.shared.open.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        crate::stepper::within("every connection is closed", gone).await;
        self.set(Mode::Pass);
    }

    /// From the first request on that contains these bytes, that request included: `Cut` keeps it from the server,
    /// `SwallowAnswers` lets it arrive and loses the answer.
    pub fn set_at(&self, bytes: impl Into<Vec<u8>>, mode: Mode) {
        *self.shared.trap.lock().unwrap() = Some((At::Bytes(bytes.into()), Fault::Mode(mode)));
    }

    /// After so many more pieces, in either direction, have passed: at the first one that then comes.
    pub fn set_after(&self, pieces: u64, mode: Mode) {
        *self.shared.trap.lock().unwrap() = Some((At::Pieces(pieces), Fault::Mode(mode)));
    }

    /// At the first request that contains these bytes its connection is severed: the client sees the end of it, the server does not,
    /// and the request is on its way until [`deliver`](Self::deliver).
    pub fn sever_at(&self, bytes: impl Into<Vec<u8>>) {
        *self.shared.trap.lock().unwrap() = Some((At::Bytes(bytes.into()), Fault::Sever));
    }

    /// What was on its way arrives, and then the connection ends for the server too.
    pub fn deliver(&self) {
        self.shared.delivered.send_replace(true);
    }

    /// How it is now; a trap of [`set_at`](Self::set_at) that was sprung shows here.
    pub fn mode(&self) -> Mode {
        *self.shared.mode.borrow()
    }

    /// Requests that were answered, on all connections so far: a burst of requests that one answer follows is one.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::Relaxed)
    }

    /// Connections that were accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.shared.mode.send_replace(Mode::Cut);
    }
}

async fn accept(listener: TcpListener, server: String, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let (server, shared) = (server.clone(), Open::new(&shared));
        tokio::spawn(async move {
            let shared = &shared.0;
            if *shared.mode.borrow() == Mode::Cut {
                return;
            }
            let Ok(server) = TcpStream::connect(server).await else { return };
            _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let last = Arc::new(Mutex::new(Direction::Answer));
            let severed = Notify::new();
            let requests = pump(from_client, to_server, Direction::Request, shared, &last, &severed);
            let answers = pump(from_server, to_client, Direction::Answer, shared, &last, &severed);
            // Whichever side ends, both are closed: half-open connections are not what is tested here.
            tokio::select! {
                () = requests => {}
                () = answers => {}
            }
        });
    }
}

/// Counts a connection for as long as it is open.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    shared: &Shared,
    last: &Mutex<Direction>,
    severed: &Notify,
) {
    let (mut mode, mut delivered) = (shared.mode.subscribe(), shared.delivered.subscribe());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            _ = mode.wait_for(|mode| *mode == Mode::Cut) => return,
            () = severed.notified(), if direction == Direction::Answer => None,
            read = from.read(&mut buffer) => Some(read),
        };
        let Some(read) = read else {
            _ = to.shutdown().await;
            return std::future::pending().await;
        };
        let Ok(length @ 1..) = read else {
            // The other side learns of the end only where something passes.
            _ = mode.wait_for(|mode| matches!(mode, Mode::Pass | Mode::Delay(_) | Mode::Cut)).await;
            return;
        };
        let piece = &buffer[..length];
        if let Some(Fault::Sever) = shared.spring(piece, direction) {
            severed.notify_one();
            _ = delivered.wait_for(|delivered| *delivered).await;
            _ = to.write_all(piece).await;
            // Its answer is not waited for: nobody would get it.
            return;
        }
        let now = *mode.wait_for(|mode| *mode != Mode::Hold).await.expect("`shared` holds the sender");
        match (now, direction) {
            (Mode::Cut, _) => return,
            (Mode::Swallow, _) | (Mode::SwallowAnswers, Direction::Answer) => continue,
            (Mode::Delay(by), _) => tokio::time::sleep(by).await,
            (Mode::Pass | Mode::Hold | Mode::SwallowAnswers, _) => {}
        }
        let before = std::mem::replace(&mut *last.lock().unwrap(), direction);
        if before == Direction::Request && direction == Direction::Answer {
            shared.round_trips.fetch_add(1, Ordering::Relaxed);
        }
        if to.write_all(piece).await.is_err() {
            return;
        }
    }
}

impl Shared {
    fn spring(&self, piece: &[u8], direction: Direction) -> Option<Fault> {
        let mut trap = self.trap.lock().unwrap();
        let (at, fault) = trap.as_mut()?;
        let springs = match at {
            At::Bytes(bytes) => {
                direction == Direction::Request && piece.windows(bytes.len()).any(|window| window == bytes)
            }
            At::Pieces(left) if *left > 0 => {
                *left -= 1;
                false
            }
            At::Pieces(_) => true,
        };
        if !springs {
            return None;
        }
        let fault = *fault;
        *trap = None;
        if let Fault::Mode(mode) = fault {
            self.mode.send_replace(mode);
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    const NEVER: Duration = Duration::from_millis(150);

    /// Answers every byte with its double, `n` bytes in one piece.
    async fn doubler() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 64];
                    while let Ok(length @ 1..) = client.read(&mut buffer).await {
                        buffer[..length].iter_mut().for_each(|byte| *byte *= 2);
                        client.write_all(&buffer[..length]).await.unwrap();
                    }
                });
            }
        });
        address
    }

    async fn start() -> (Proxy, TcpStream) {
        let proxy = Proxy::to(doubler().await).await.unwrap();
        let client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        (proxy, client)
    }

    async fn answer(client: &mut TcpStream, limit: Duration) -> Option<Result<u8, std::io::Error>> {
        tokio::time::timeout(limit, client.read_u8()).await.ok()
    }

    async fn ask(client: &mut TcpStream, byte: u8) -> u8 {
        client.write_u8(byte).await.unwrap();
        answer(client, SOON).await.expect("an answer").unwrap()
    }

    #[tokio::test]
    async fn it_passes_and_counts_round_trips() {
        let (proxy, mut client) = start().await;
        for n in 1..=5 {
            assert_eq!(ask(&mut client, n).await, 2 * n);
            assert_eq!(proxy.round_trips(), u64::from(n));
        }
        // A burst of two requests that one answer follows is one round trip.
        client.write_all(&[6, 7]).await.unwrap();
        let mut both = [0; 2];
        client.read_exact(&mut both).await.unwrap();
        assert_eq!((both, proxy.round_trips(), proxy.connections()), ([12, 14], 6, 1));
        let mut other = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert_eq!((ask(&mut other, 1).await, proxy.round_trips(), proxy.connections()), (2, 7, 2));
    }

    #[tokio::test]
    async fn it_delays_both_ways() {
        let (proxy, mut client) = start().await;
        proxy.set(Mode::Delay(Duration::from_millis(40)));
        let begin = Instant::now();
        assert_eq!(ask(&mut client, 3).await, 6);
        assert!(begin.elapsed() >= Duration::from_millis(80), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn it_holds_and_loses_nothing() {
        let (proxy, mut client) = start().await;
        proxy.set(Mode::Hold);
        client.write_u8(4).await.unwrap();
        assert!(answer(&mut client, NEVER).await.is_none());
        assert_eq!(proxy.round_trips(), 0);
        proxy.set(Mode::Pass);
        assert_eq!(answer(&mut client, SOON).await.unwrap().unwrap(), 8);
        assert_eq!(proxy.round_trips(), 1);
    }

    #[tokio::test]
    async fn it_swallows_for_ever() {
        let (proxy, mut client) = start().await;
        for mode in [Mode::Swallow, Mode::SwallowAnswers] {
            proxy.set(mode);
            client.write_u8(5).await.unwrap();
            assert!(answer(&mut client, NEVER).await.is_none(), "{mode:?}");
            proxy.set(Mode::Pass);
            assert!(answer(&mut client, NEVER).await.is_none(), "{mode:?}");
        }
        assert_eq!(proxy.round_trips(), 0);
        // The connection itself is whole.
        assert_eq!(ask(&mut client, 6).await, 12);
    }

    #[tokio::test]
    async fn it_cuts_what_is_open_and_what_comes() {
        let (proxy, mut client) = start().await;
        assert_eq!(ask(&mut client, 1).await, 2);
        proxy.set(Mode::Cut);
        assert!(answer(&mut client, SOON).await.expect("the end is noticed").is_err());
        let mut other = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert!(answer(&mut other, SOON).await.expect("the end is noticed").is_err());
        proxy.set(Mode::Pass);
        let mut again = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert_eq!(ask(&mut again, 2).await, 4);
    }

    #[tokio::test]
    async fn a_trap_springs_after_so_many_pieces() {
        let (proxy, mut client) = start().await;
        proxy.set_after(3, Mode::Swallow);
        assert_eq!((ask(&mut client, 6).await, proxy.mode()), (12, Mode::Pass));
        // The request is the third, and its answer is the first that does not pass.
        client.write_u8(7).await.unwrap();
        assert!(answer(&mut client, NEVER).await.is_none());
        assert_eq!((proxy.mode(), proxy.round_trips()), (Mode::Swallow, 1));
    }

    #[tokio::test]
    async fn what_is_severed_arrives_late_and_others_pass() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::to(listener.local_addr().unwrap().to_string()).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        proxy.sever_at([7]);
        client.write_u8(7).await.unwrap();
        assert!(answer(&mut client, SOON).await.expect("the end is noticed").is_err());
        let mut other = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        let (mut beside, _) = listener.accept().await.unwrap();
        other.write_u8(7).await.unwrap();
        assert_eq!(answer(&mut beside, SOON).await.unwrap().unwrap(), 7);
        assert!(answer(&mut server, NEVER).await.is_none());
        proxy.deliver();
        assert_eq!(answer(&mut server, SOON).await.unwrap().unwrap(), 7);
        assert!(answer(&mut server, SOON).await.unwrap().is_err());
    }

    #[tokio::test]
    async fn a_trap_springs_at_its_request() {
        let (proxy, mut client) = start().await;
        proxy.set_at([7], Mode::Cut);
        assert_eq!((ask(&mut client, 6).await, proxy.mode()), (12, Mode::Pass));
        client.write_u8(7).await.unwrap();
        assert!(answer(&mut client, SOON).await.expect("the end is noticed").is_err());
        assert_eq!((proxy.mode(), proxy.round_trips()), (Mode::Cut, 1));
    }
}
