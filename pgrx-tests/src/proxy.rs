//! A socket between a server and its clients that simulates network failures.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

use parking_lot::{Condvar, Mutex};

use crate::programs::new_dir;
use crate::server::{PORT, Server, connect};
use crate::session::{Failure, Session};

/// Polling interval for new connections.
const ACCEPT: Duration = Duration::from_millis(2);
/// End of an answer: ReadyForQuery, outside of a transaction.
const READY: [u8; 6] = *b"Z\0\0\0\x05I";

/// Behavior of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything is passed on.
    Pass,
    /// Connections are refused, and existing ones are closed.
    Refuse,
    /// Connections are accepted, but nothing is passed on, in either direction, until another mode
    /// is set.
    Silent,
    /// New connections are accepted, and receive ParameterStatus messages without end.
    Chatter,
    /// The next request that contains this text (within one read) is dropped, and its connection is
    /// closed. Then everything is passed on.
    CutBefore(&'static str),
    /// The next request that contains this text is passed on, and its connection is closed once the
    /// answer has arrived, which is dropped: the request was executed, but the client does not
    /// know. Then everything is passed on.
    CutAfter(&'static str),
    /// The next request that contains this text is answered with a flood. Then everything is passed on.
    FloodInstead(&'static str, &'static Flood),
    /// The next request that contains this text is passed on; once the answer has been, the flood
    /// follows it. Then everything is passed on.
    FloodAfter(&'static str, &'static Flood),
}

/// What a hostile server sends: first some bytes, then a message again and again, until the client
/// closes the connection or [`Flood::MOST`] bytes are sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Flood {
    /// Sent once.
    pub first: Vec<u8>,
    /// Sent again and again, each time with another number in place of [`Flood::NUMBER`].
    pub again: Vec<u8>,
}

impl Flood {
    /// Bytes sent at most.
    pub const MOST: usize = 256 << 20;
    /// Place of a number.
    pub const NUMBER: &'static [u8; 8] = b"00000000";

    fn send(&self, mut client: &UnixStream) {
        let places = self.again.windows(Self::NUMBER.len());
        let place = places
            .enumerate()
            .find_map(|(place, part)| (part == Self::NUMBER).then_some(place));
        let mut message = self.again.clone();
        let mut sent = client.write_all(&self.first);
        for number in 0..Self::MOST / message.len() {
            if sent.is_err() {
                return;
            }
            if let Some(place) = place {
                message[place..place + Self::NUMBER.len()]
                    .copy_from_slice(format!("{number:08}").as_bytes());
            }
            sent = client.write_all(&message);
        }
    }
}

struct State {
    mode: Mode,
    /// `None` while connections are refused.
    listener: Option<UnixListener>,
    /// Both ends of each connection, by its number.
    streams: BTreeMap<usize, Vec<UnixStream>>,
    connections: usize,
    cuts: usize,
    floods: usize,
    closed: bool,
}

struct Shared {
    dir: PathBuf,
    target: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

/// A directory with a socket that can replace a server's.
pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy for this server that passes everything on.
    ///
    /// # Panics
    /// If the socket cannot be created.
    #[must_use]
    pub fn to(server: &Server) -> Self {
        let dir = new_dir();
        let listener = Some(listen(&dir));
        let shared = Arc::new(Shared {
            dir,
            target: socket_in(server.dir()),
            state: Mutex::new(State {
                mode: Mode::Pass,
                listener,
                streams: BTreeMap::new(),
                connections: 0,
                cuts: 0,
                floods: 0,
                closed: false,
            }),
            changed: Condvar::new(),
        });
        let acceptor = Some(thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept()
        }));
        Self { shared, acceptor }
    }

    /// Value for `host`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// A superuser session in database postgres, through the proxy.
    ///
    /// # Errors
    /// The connection failed.
    pub fn try_session(&self) -> Result<Session, Failure> {
        connect(self.dir(), PORT, "postgres", "postgres")
    }

    /// Changes the mode, including that of existing connections.
    pub fn set(&self, mode: Mode) {
        let mut state = self.shared.state.lock();
        state.mode = mode;
        if mode == Mode::Refuse {
            state.listener = None;
            state.end_connections();
        } else if state.listener.is_none() {
            state.listener = Some(listen(&self.shared.dir));
        }
        self.shared.changed.notify_all();
    }

    /// Closes existing connections; new ones are accepted.
    pub fn end_connections(&self) {
        self.shared.state.lock().end_connections();
    }

    /// Number of connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state.lock().connections
    }

    /// Number of requests cut off so far.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.shared.state.lock().cuts
    }

    /// Number of floods that are over.
    #[must_use]
    pub fn floods(&self) -> usize {
        self.shared.state.lock().floods
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.listener = None;
            state.end_connections();
            self.shared.changed.notify_all();
        }
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().unwrap();
        }
        fs::remove_dir_all(&self.shared.dir).unwrap();
    }
}

impl State {
    fn end_connections(&mut self) {
        self.streams.values().flatten().for_each(end);
    }

    /// Registers a stream, to be closed with the others of its connection.
    fn keep(&mut self, connection: usize, stream: &UnixStream) {
        let stream = stream.try_clone().unwrap();
        self.streams.entry(connection).or_default().push(stream);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            let accepted = state.listener.as_ref().map(UnixListener::accept);
            match accepted {
                Some(Ok((client, _))) => {
                    state.connections += 1;
                    let number = state.connections;
                    client.set_nonblocking(false).unwrap();
                    state.keep(number, &client);
                    drop(state);
                    let shared = Arc::clone(self);
                    thread::spawn(move || shared.serve(number, &client));
                }
                Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                    panic!("the proxy cannot accept: {error}");
                }
                _ => {
                    self.changed.wait_for(&mut state, ACCEPT);
                }
            }
        }
    }

    /// Waits in silent mode. Returns the mode, or `None` if the proxy is closed.
    fn mode(&self) -> Option<Mode> {
        let mut state = self.state.lock();
        while state.mode == Mode::Silent && !state.closed {
            self.changed.wait(&mut state);
        }
        (!state.closed && state.mode != Mode::Refuse).then_some(state.mode)
    }

    fn serve(&self, number: usize, client: &UnixStream) {
        let mode = self.mode();
        if mode == Some(Mode::Chatter) {
            chatter(client);
        }
        let connected = mode.and_then(|_| UnixStream::connect(&self.target).ok());
        if let Some(server) = connected {
            self.state.lock().keep(number, &server);
            let cut = AtomicBool::new(false);
            let flood = Mutex::new(None);
            thread::scope(|scope| {
                scope.spawn(|| self.pass_answers(&server, client, &cut, &flood));
                self.pass_requests(client, &server, &cut, &flood);
            });
        }
        end(client);
        self.state.lock().streams.remove(&number);
    }

    fn pass_requests(
        &self,
        client: &UnixStream,
        server: &UnixStream,
        cut: &AtomicBool,
        flood: &Mutex<Option<&'static Flood>>,
    ) {
        let mut buffer = [0; 65536];
        while let Some(request) = read(client, &mut buffer) {
            match self.mode() {
                Some(mode @ (Mode::CutBefore(text) | Mode::CutAfter(text)))
                    if says(request, text) && self.take_cut(mode) =>
                {
                    if matches!(mode, Mode::CutBefore(_)) {
                        break;
                    }
                    cut.store(true, Ordering::SeqCst);
                }
                Some(mode @ Mode::FloodInstead(text, what))
                    if says(request, text) && self.take_turn(mode) =>
                {
                    self.flood(what, client);
                    break;
                }
                Some(mode @ Mode::FloodAfter(text, what))
                    if says(request, text) && self.take_turn(mode) =>
                {
                    *flood.lock() = Some(what);
                }
                Some(_) => {}
                None => break,
            }
            let mut to = server;
            if to.write_all(request).is_err() {
                break;
            }
        }
        end(client);
        end(server);
    }

    fn pass_answers(
        &self,
        server: &UnixStream,
        client: &UnixStream,
        cut: &AtomicBool,
        flood: &Mutex<Option<&'static Flood>>,
    ) {
        let mut buffer = [0; 65536];
        let mut kept_back = Vec::new();
        while let Some(answer) = read(server, &mut buffer) {
            if self.mode().is_none() {
                break;
            }
            // No answer is in flight when the request is sent.
            if cut.load(Ordering::SeqCst) {
                kept_back.extend_from_slice(answer);
                if kept_back.ends_with(&READY) {
                    break;
                }
                continue;
            }
            let mut to = client;
            if to.write_all(answer).is_err() {
                break;
            }
            if answer.ends_with(&READY)
                && let Some(what) = flood.lock().take()
            {
                self.flood(what, client);
                break;
            }
        }
        end(client);
        end(server);
    }

    /// Of several concurrent requests, only one is cut off.
    fn take_cut(&self, mode: Mode) -> bool {
        let is_mine = self.take_turn(mode);
        self.state.lock().cuts += usize::from(is_mine);
        is_mine
    }

    /// Ends a mode that is for one request.
    fn take_turn(&self, mode: Mode) -> bool {
        let mut state = self.state.lock();
        let is_mine = state.mode == mode;
        if is_mine {
            state.mode = Mode::Pass;
        }
        is_mine
    }

    fn flood(&self, what: &Flood, client: &UnixStream) {
        what.send(client);
        self.state.lock().floods += 1;
    }
}

/// Sends settings until the client or [`Proxy::end_connections`] closes the connection.
fn chatter(mut client: &UnixStream) {
    // So many that libpq, which searches a list for each, is slower than this loop.
    let settings: Vec<u8> = (0..10_000)
        .flat_map(|number| {
            let setting = format!("setting{number}\0x\0");
            let length = u32::try_from(4 + setting.len()).unwrap();
            // ParameterStatus.
            [b"S", &length.to_be_bytes()[..], setting.as_bytes()].concat()
        })
        .collect();
    // AuthenticationOk.
    let mut said = client.write_all(b"R\0\0\0\x08\0\0\0\0");
    while said.is_ok() {
        said = client.write_all(&settings);
    }
}

fn socket_in(dir: &Path) -> PathBuf {
    dir.join(format!(".s.PGSQL.{PORT}"))
}

fn listen(dir: &Path) -> UnixListener {
    let socket = socket_in(dir);
    // Left by the previous listener.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    listener
}

/// Reads available bytes; `None` at the end of the stream.
fn read<'a>(mut from: &UnixStream, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    match from.read(buffer) {
        Ok(0) | Err(_) => None,
        Ok(length) => Some(&buffer[..length]),
    }
}

fn says(request: &[u8], text: &str) -> bool {
    request
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

fn end(stream: &UnixStream) {
    // It may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}
