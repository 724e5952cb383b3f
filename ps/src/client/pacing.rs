//! The part of the contract for trainers that do not wait for each other in each step.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zillion_feature::{LookupPlan, RowBuffer};

use crate::error::{Error, Result};

/// The largest bound of the staleness of a pull, in steps.
pub const MOST_STALENESS: u64 = 64;

/// The pace of trainers whose gradients are applied when they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// The largest number of steps of any trainer that the rows of a pull may lack. The pull of a
    /// trainer's step `n` waits until the pushes of every trainer up to the step
    /// `n - 1 - staleness` are applied. Without a bound, pulls never wait.
    pub staleness: Option<u64>,
    /// Whether each push is a step in the tables' count of steps. Otherwise the pushes of all
    /// trainers with the same number are one step.
    pub counts_pushes: bool,
}

/// The push of a trainer that is applied when it arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// The factor of the gradients of rows.
    pub scale: f32,
    /// The changes of the dense parameters in the step, one after another; empty if the trainers
    /// share no dense parameters on the servers.
    pub dense: Vec<f32>,
    /// Whether the trainer wants all trainers to stop soon.
    pub is_stopping: bool,
}

/// The state that the trainers share on the servers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared {
    /// The dense parameters, one after another: the initial ones, plus the changes of all trainers
    /// so far.
    pub dense: Vec<f32>,
    /// The number of each trainer's step after which all trainers stop; 0 if no trainer wants to
    /// stop. Each trainer learns of the stop before this step ends.
    pub stop_at: u64,
}

/// The state of the servers after a generation that goes on with the tables of an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continued {
    /// The number of the generation.
    pub generation: u64,
    /// The number of servers whose tables are empty, because the servers were started again.
    pub empty_servers: u64,
    /// The number of pushes of this trainer to the other servers that were not applied. A push to
    /// two servers counts twice. The number is `None` if a server has applied more pushes than this
    /// trainer has sent.
    pub unapplied: Option<u64>,
}

/// The part of a client by which trainers push without waiting for each other in each step.
///
/// A step makes the calls `begin_step`, `pull` and [`Pacing::send`]. A trainer without a batch
/// calls `send` without a plan. Calls that read or write whole tables (lookups, checkpoints,
/// layers) wait until the pushes of all trainers up to this trainer's last step are applied.
pub trait Pacing: Send {
    /// Gives the servers the run's number of steps and the initial dense parameters. Trainer 0
    /// calls it before [`Exchanging::start`](super::Exchanging::start).
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached, or if the client has no pace.
    fn begin_pace(&mut self, _step: u64, _dense: &[f32]) -> Result<()> {
        Err(without_pace("begin_pace"))
    }

    /// Returns the state of the servers if the generation goes on with the tables of an earlier
    /// one.
    /// [`Checkpointing::restore`](super::Checkpointing::restore) then fills only the empty tables.
    fn continued(&self) -> Option<Continued> {
        None
    }

    /// Returns the state that the trainers share now, without waiting for other trainers.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached, if the run was rewound, or if the client has
    /// no pace.
    fn look_at_shared(&mut self) -> Result<Shared> {
        Err(without_pace("look_at_shared"))
    }

    /// Sends the gradients of a step, which the servers apply when they arrive, and ends the step.
    /// The call does not wait for the servers. Without a plan, the step has no gradients.
    ///
    /// # Errors
    /// Returns an error if no step has begun, if the gradients do not fit the plan, if a server
    /// cannot be reached, or if the client has no pace.
    fn send(
        &mut self,
        _plan: Option<&Arc<LookupPlan>>,
        _gradients: &RowBuffer,
        _arrival: Arrival,
    ) -> Result<()> {
        Err(without_pace("send"))
    }

    /// Waits for the answers to all pushes of this trainer, and returns the state that the trainers
    /// shared at the moment of the last push. Returns `None` if there was no push since the last
    /// call.
    ///
    /// # Errors
    /// Returns an error if a push has failed, or if the client has no pace.
    fn take_shared(&mut self) -> Result<Option<Shared>> {
        Err(without_pace("take_shared"))
    }

    /// Waits until the pushes of all trainers up to this trainer's last step are applied, and
    /// returns the state that the trainers then share.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached, if the run was rewound, or if the client has
    /// no pace.
    fn settle(&mut self) -> Result<Shared> {
        Err(without_pace("settle"))
    }
}

fn without_pace(call: &'static str) -> Error {
    let reason = "the tables have no pace, because they are in this process or the training is \
                  synchronous; open tables on servers with a pace"
        .to_owned();
    Error::Argument { call, reason }
}
