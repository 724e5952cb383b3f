//! The session of a trainer: the frames that it has sent, and the answers that are kept for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zillion_feature::LookupPlan;

use super::request::{Outlet, Request, milliseconds};
use crate::wire::{Frame, Header};

/// The largest number of frames that a client may send before it has received the answer to the
/// first of them.
pub(super) const MOST_OPEN: usize = 64;

/// The number of announced plans that are kept.
const MOST_PLANS: usize = 4;

/// The session of a trainer in one generation. It outlives connections: a client whose connection
/// was cut opens another one and goes on.
#[derive(Debug)]
pub(super) struct Session {
    /// The number of the trainer.
    pub(super) trainer: usize,
    /// The number that the trainer's process drew when it started.
    client: u64,
    /// The connections of the client, oldest first. Answers go to the connection of the newest
    /// frame.
    outlets: Vec<Outlet>,
    /// The connection that the newest frame came from.
    answers_to: Outlet,
    /// The greatest number of a frame that was accepted.
    pub(super) accepted: u64,
    /// The answers that the client may not have received, each with its number.
    kept: VecDeque<(u64, Arc<Frame>)>,
    /// The frame that waits for other trainers.
    pub(super) blocked: Option<Header>,
    /// The frames behind the blocked one.
    pub(super) waiting: VecDeque<Box<Request>>,
    /// The announced plans, each with the number that the client has given it.
    plans: VecDeque<(u64, Arc<LookupPlan>)>,
    /// The number of frames that had an effect.
    pub(super) frames: u64,
}

/// The relation of a numbered frame to the frames before it.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The next frame of the session.
    Next,
    /// A frame that has arrived before, and whose answer is kept.
    Answered(Arc<Frame>),
    /// A frame that has arrived before. It waits for its turn, or its answer was received.
    Repeated,
    /// A frame whose predecessor is missing.
    Gap,
}

impl Session {
    pub(super) fn new(trainer: usize, client: u64, outlet: Outlet) -> Self {
        Self {
            trainer,
            client,
            outlets: vec![outlet.clone()],
            answers_to: outlet,
            accepted: 0,
            kept: VecDeque::new(),
            blocked: None,
            waiting: VecDeque::new(),
            plans: VecDeque::new(),
            frames: 0,
        }
    }

    /// Adds a connection of the client.
    pub(super) fn add(&mut self, outlet: &Outlet) {
        self.outlets.retain(|known| !known.is_closed());
        self.outlets.push(outlet.clone());
    }

    /// Sends the answers to a connection from now on. Does nothing for an earlier connection, whose
    /// last frame may arrive after the first frame of the next one.
    pub(super) fn answer_to(&mut self, outlet: &Outlet) {
        if outlet.number >= self.answers_to.number {
            self.answers_to = outlet.clone();
        }
    }

    /// Returns the milliseconds since the start of the process at which the client was heard last.
    pub(super) fn heard(&self) -> u64 {
        self.outlets.iter().map(Outlet::heard).max().unwrap_or(0)
    }

    /// Returns whether the client has an open connection.
    pub(super) fn is_connected(&self) -> bool {
        self.outlets.iter().any(|outlet| !outlet.is_closed())
    }

    /// Returns whether the session belongs to another process than `client`, and that process was
    /// heard within the lease.
    pub(super) fn is_alive_elsewhere(&self, client: u64, lease: Duration) -> bool {
        let silent = milliseconds(Instant::now()).saturating_sub(self.heard());
        self.client != client && self.is_connected() && Duration::from_millis(silent) <= lease
    }

    /// Forgets the answers that the client has received.
    pub(super) fn forget(&mut self, received: u64) {
        while self.kept.front().is_some_and(|(number, _)| *number <= received) {
            self.kept.pop_front();
        }
    }

    /// Returns what a frame is, and accepts it if it is the next one.
    pub(super) fn arrive(&mut self, number: u64) -> Arrival {
        if number == self.accepted + 1 {
            self.accepted = number;
            return Arrival::Next;
        }
        if number > self.accepted {
            return Arrival::Gap;
        }
        match self.kept.iter().find(|(kept, _)| *kept == number) {
            Some((_, answer)) => Arrival::Answered(answer.clone()),
            None => Arrival::Repeated,
        }
    }

    /// Returns whether the client has as many open frames as it may have.
    pub(super) fn is_full(&self) -> bool {
        self.kept.len() + self.waiting.len() >= MOST_OPEN
    }

    /// Sends an answer, and keeps it until the client has received it.
    pub(super) fn answer(&mut self, number: u64, frame: Frame) {
        let frame = Arc::new(frame);
        self.kept.push_back((number, frame.clone()));
        self.frames += 1;
        self.answers_to.send(frame);
    }

    /// Sends a kept answer again.
    pub(super) fn repeat(&self, frame: Arc<Frame>) {
        self.answers_to.send(frame);
    }

    /// Keeps an announced plan.
    pub(super) fn announce(&mut self, number: u64, plan: Arc<LookupPlan>) {
        self.plans.retain(|(known, _)| *known != number);
        self.plans.push_back((number, plan));
        if self.plans.len() > MOST_PLANS {
            self.plans.pop_front();
        }
    }

    /// Returns an announced plan, or `None` if it is unknown.
    pub(super) fn plan(&self, number: u64) -> Option<Arc<LookupPlan>> {
        self.plans.iter().find(|(known, _)| *known == number).map(|(_, plan)| plan.clone())
    }
}
