//! A socket between a server and those who connect to it, with the failures of a network.

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

/// How often it looks for a new connection.
const ACCEPT: Duration = Duration::from_millis(2);
/// The end of an answer: ready for the next query, outside of a transaction.
const READY: [u8; 6] = *b"Z\0\0\0\x05I";

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All goes through.
    Pass,
    /// Connections are refused, and those that there are have ended.
    Refuse,
    /// Connections are accepted, and nothing goes through, in either direction. It goes
    /// through later, in another mode.
    Silent,
    /// New connections are let in, and told of one setting after another, without end.
    Chatter,
    /// The next request that says this (within what comes at once) is never sent on, and its
    /// connection ends. From then on all goes through.
    CutBefore(&'static str),
    /// The next request that says this is sent on, its answer is awaited and kept back, and
    /// its connection ends: it was done there, and here nobody knows. From then on all goes
    /// through.
    CutAfter(&'static str),
}

struct State {
    mode: Mode,
    /// There is none while connections are refused.
    listener: Option<UnixListener>,
    /// Both ends of each connection, by its number.
    streams: BTreeMap<usize, Vec<UnixStream>>,
    connections: usize,
    cuts: usize,
    closed: bool,
}

struct Shared {
    dir: PathBuf,
    target: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

/// A directory with a socket, which may stand in for that of a server.
pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// One that lets everything through to this server.
    ///
    /// # Panics
    /// When there can be no socket.
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

    /// What to give as the host.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// A session of the superuser in the database postgres, through here.
    ///
    /// # Errors
    /// What the server answered, or the end of the connection.
    pub fn try_session(&self) -> Result<Session, Failure> {
        connect(self.dir(), PORT, "postgres", "postgres")
    }

    /// Changes what becomes of connections, of those that there are too.
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

    /// Ends the connections that there are; new ones are accepted.
    pub fn end_connections(&self) {
        self.shared.state.lock().end_connections();
    }

    /// How many connections were accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state.lock().connections
    }

    /// How many requests were cut off so far.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.shared.state.lock().cuts
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

    /// Has the stream end with all others of that connection.
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

    /// Waits while nothing goes through. Then the mode, unless all is over.
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
            thread::scope(|scope| {
                scope.spawn(|| self.pass_answers(&server, client, &cut));
                self.pass_requests(client, &server, &cut);
            });
        }
        end(client);
        self.state.lock().streams.remove(&number);
    }

    fn pass_requests(&self, client: &UnixStream, server: &UnixStream, cut: &AtomicBool) {
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

    fn pass_answers(&self, server: &UnixStream, client: &UnixStream, cut: &AtomicBool) {
        let mut buffer = [0; 65536];
        let mut kept_back = Vec::new();
        while let Some(answer) = read(server, &mut buffer) {
            if self.mode().is_none() {
                break;
            }
            // Nothing is under way there when the request is sent.
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
        }
        end(client);
        end(server);
    }

    /// Of several requests at once only one is cut off.
    fn take_cut(&self, mode: Mode) -> bool {
        let mut state = self.state.lock();
        let is_mine = state.mode == mode;
        if is_mine {
            state.mode = Mode::Pass;
            state.cuts += 1;
        }
        is_mine
    }
}

/// Until the client, or [`Proxy::end_connections`], ends it.
fn chatter(mut client: &UnixStream) {
    // So many that libpq, which looks for each in a list, is slower than this.
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
    // Of the last one, which refuses connections.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    listener
}

/// What came, until the other end is closed.
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
    // It may have ended by itself.
    let _ = stream.shutdown(Shutdown::Both);
}
