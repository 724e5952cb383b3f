//! The signs of life between a trainer and one server, over a connection of their own.
//!
//! The server learns that the trainer lives, also while the trainer computes and asks nothing. The
//! trainer learns that the server hangs, also while it waits for an answer that takes long for a
//! good reason, for example because other trainers are late. The trainer also learns that the
//! server was started again, even if the connection of the session does not end.
//!
//! A directory of servers can raise a doubt about a server, for example because its lease has
//! expired. A server that is in doubt has less time for its next sign of life.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::dialog::{Dialog, Trouble, until};
use crate::tls::ClientTls;
use crate::token::Token;
use crate::wire::{
    Frame, Header, Hello, Op, Reader, WIRE_VERSION, Welcome, WireError, read_json, write_json,
};

/// The time within which a server that is in doubt must give a sign of life.
const DOUBT: Duration = Duration::from_secs(1);

/// The health of a server, as the thread of its signs of life finds it.
#[derive(Debug, Default)]
pub(super) struct Health {
    is_stopped: AtomicBool,
    /// The newest request for a checkpoint that waits on the server, or 0.
    wanted: AtomicU64,
    lost: Mutex<Option<String>>,
    /// The moment and the cause of a doubt about the server.
    doubt: Mutex<Option<(Instant, String)>>,
}

impl Health {
    /// Returns the reason for which the server is lost, or `None` if it lives.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of the newest request for a checkpoint that waits on the server, or 0.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// Marks the server as lost.
    pub(super) fn lose(&self, cause: String) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
    }

    /// Raises a doubt about the server.
    pub(super) fn raise_doubt(&self, cause: String) {
        let mut doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        doubt.get_or_insert((Instant::now(), cause));
    }

    /// Returns the moment at which a server that stays silent is lost because of a doubt, and the
    /// cause of the doubt.
    fn doubted_until(&self) -> Option<(Instant, String)> {
        let doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        doubt.as_ref().map(|(since, cause)| (*since + DOUBT, cause.clone()))
    }

    /// Takes back a doubt that was raised before a sign of life.
    fn trust(&self, alive: Instant) {
        let mut doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        doubt.take_if(|(since, _)| *since <= alive);
    }
}

/// The thread that exchanges signs of life with a server.
#[derive(Debug)]
pub(super) struct Heart {
    health: Arc<Health>,
    thread: Option<JoinHandle<()>>,
}

/// The server and the session to which the signs of life belong.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    pub(super) server: String,
    pub(super) hello: Hello,
    pub(super) tls: Option<ClientTls>,
    pub(super) session: u64,
    /// The number that the server drew when it started.
    pub(super) boot: u64,
    pub(super) deadline: Duration,
}

impl Heart {
    /// Starts the thread. If the system refuses a thread, signs of life are left out, and the lease
    /// of the server decides.
    pub(super) fn begin(pulse: Pulse, health: Arc<Health>) -> Self {
        let shared = health.clone();
        let thread = thread::Builder::new().name("ps-heart".to_owned());
        let thread = thread.spawn(move || beat(&pulse, &shared)).ok();
        Self { health, thread }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.health.is_stopped.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Exchanges signs of life until the client is dropped or the server is lost.
fn beat(pulse: &Pulse, health: &Health) {
    let interval =
        (pulse.deadline / 8).clamp(Duration::from_millis(10), Duration::from_millis(250));
    let mut dialog: Option<Dialog> = None;
    let mut last = Instant::now();
    while !health.is_stopped.load(Ordering::Acquire) {
        let end = last + pulse.deadline;
        let began = Instant::now();
        match exchange(pulse, health, &mut dialog, end) {
            Ok(boot) if boot.is_none_or(|boot| boot == pulse.boot) => {
                last = Instant::now();
                health.trust(began);
            }
            Ok(_) => {
                // The other connection may not notice it, if its peer has vanished silently.
                return health.lose(format!("server {} was started again", pulse.server));
            }
            Err(trouble) => {
                dialog = None;
                if let Some((until, cause)) = health.doubted_until()
                    && Instant::now() >= until
                {
                    return health.lose(format!(
                        "{cause}, and the server gave no sign of life for {DOUBT:?} after it"
                    ));
                }
                if Instant::now() >= end {
                    let what = match trouble {
                        Trouble::Io(e) => e.to_string(),
                        Trouble::Bad(e) => e.to_string(),
                        Trouble::Lost(_) => "it is silent".to_owned(),
                        Trouble::Refused(problem) => problem,
                    };
                    let (server, deadline) = (&pulse.server, pulse.deadline);
                    health.lose(format!(
                        "server {server} gave no sign of life for {deadline:?} ({what})"
                    ));
                    return;
                }
            }
        }
        thread::park_timeout(interval);
    }
}

/// Sends one sign of life and waits for its answer. Returns the number that the server drew when it
/// started, if the connection is new.
fn exchange(
    pulse: &Pulse,
    health: &Health,
    dialog: &mut Option<Dialog>,
    end: Instant,
) -> Result<Option<u64>, Trouble> {
    let late = until(end, &pulse.server);
    let lost = || {
        let doubted = health.doubted_until().filter(|(until, _)| Instant::now() >= *until);
        doubted.map(|(_, cause)| cause).or_else(&late)
    };
    let header = |op| Header {
        op,
        generation: 0,
        session: pulse.session,
        number: 0,
        received: 0,
        step: 0,
        body: 0,
    };
    let mut boot = None;
    let open = match dialog {
        Some(open) => open,
        None => {
            let left = end.saturating_duration_since(Instant::now());
            // A doubt can arise meanwhile.
            let left = left.min(DOUBT);
            let mut fresh = Dialog::connect(&pulse.server, pulse.tls.as_ref(), left)?;
            let mut memory = Frame::begin(Vec::new());
            write_json(&mut memory, &pulse.hello);
            fresh.send(&Frame::finish(memory, header(Op::Hello)), &lost)?;
            let (answer, body) = fresh.receive(Vec::new(), &lost)?;
            if answer.op != Op::Answer {
                return Err(Trouble::Bad(WireError::new("the server refuses a new connection")));
            }
            let welcome: Welcome = read_json(&body).map_err(Trouble::Bad)?;
            boot = Some(welcome.boot);
            dialog.insert(fresh)
        }
    };
    let frame = Frame::finish(Frame::begin(Vec::new()), header(Op::Ping));
    open.send(&frame, &lost)?;
    let (answer, body) = open.receive(Vec::new(), &lost)?;
    if answer.op != Op::Answer {
        return Err(Trouble::Bad(WireError::new("the server refuses a sign of life")));
    }
    // Nothing is taken from an answer of another boot, whose requests have other numbers.
    if boot.is_none_or(|boot| boot == pulse.boot) {
        let wanted = Reader::new(&body).u64().map_err(Trouble::Bad)?;
        health.wanted.store(wanted, Ordering::Release);
    }
    Ok(boot)
}

/// Returns the first message of a connection.
pub(super) fn hello(run: Option<String>, trainer: usize, token: Option<&Token>) -> Hello {
    Hello {
        wire: WIRE_VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        run,
        trainer,
        token: token.map(Token::show),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_takes_an_earlier_doubt_back() {
        let health = Health::default();
        let before = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        health.raise_doubt("its lease has expired".to_owned());
        let (until, cause) = health.doubted_until().unwrap();
        assert!(until >= before + DOUBT && cause.contains("lease"));
        health.raise_doubt("later".to_owned());
        assert_eq!(health.doubted_until(), Some((until, cause)));
        // A question that was sent before the doubt proves nothing.
        health.trust(before);
        assert!(health.doubted_until().is_some());
        health.trust(Instant::now());
        assert_eq!(health.doubted_until(), None);
        assert_eq!(health.lost(), None);
    }
}
