//! The client of tables on servers. It divides each call among the servers by the slots that they
//! own, and puts the answers together.
//!
//! # Invariants
//! * A frame has its effect once on each server. If a connection is cut, the client opens another
//!   one and sends again what was not answered, with the same numbers.
//! * A client never sends a frame again to a server that was started anew. It returns
//!   [`Error::Rewound`] instead, and the run continues from its newest checkpoint under another
//!   generation.
//! * A server that does not answer within the deadline is an error that names the server.
//! * Reads never insert a row.

mod checkpointing;
mod dialog;
mod exchange;
mod finding;
mod generations;
mod heart;
mod lending;
mod link;
mod names;
mod options;
mod owners;
mod pacing;
mod publishing;
mod status;
mod steps;
mod tables;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zillion_embedding::{Rates, lent_words};
use zillion_feature::LookupPlan;
use zillion_rows::{RowShape, TableLayout, TableSpec};

pub use options::{RegisteredServers, RemoteOptions, Stop};
pub use status::{ServerState, server_state};

use crate::client::{PullOptions, TrainerPlace};
use crate::code::ErrorCode;
use crate::error::{Error, Result, start_error};
use crate::map::{ClusterMap, EntryKind, MapEntry, Upkeep};
use crate::options::TableOptions;
use crate::order::StepOrder;
use crate::wire::{Continues, Entered, JoinRun, Leave, Op, OpenRun, WireError, write_json};
use finding::{connect_all, greet_all, wait_for_map, wait_for_trainers, watch_servers};
use generations::Generations;
use link::Link;
use names::Names;
use owners::Owners;
use pacing::Clock;

/// The time between two looks for a new generation.
const LOOK: Duration = Duration::from_millis(50);

/// A [`TrainClient`](crate::TrainClient) over tables on servers.
///
/// # Concurrency
/// Each call waits for the servers on the calling thread. A thread for each server sends signs of
/// life beside it.
#[derive(Debug)]
pub struct RemoteClient {
    links: Vec<Link>,
    owners: Owners,
    specs: Vec<TableSpec>,
    layouts: Vec<TableLayout>,
    place: TrainerPlace,
    generation: u64,
    /// The name of the run.
    run: String,
    names: Names,
    /// The log of the generations of the run.
    log: Arc<dyn ClusterMap>,
    order: StepOrder,
    rates: Rates,
    needs_sweep: bool,
    /// The plans that the servers know, each with its number. The oldest one comes first.
    plans: VecDeque<(Arc<LookupPlan>, u64)>,
    last_plan: u64,
    /// The plan that was announced and whose rows were not pulled yet.
    announced: Option<Arc<LookupPlan>>,
    /// The frames of announcements whose answers were not read yet.
    unread: VecDeque<Vec<u64>>,
    /// The frames of each open question for rows, each with its server.
    takes: VecDeque<Vec<(usize, u64)>>,
    /// The number of words of a lent row of each table.
    lent_words: Vec<usize>,
    /// The pull that was sent with the end of the last step.
    ahead: Option<Ahead>,
    /// The options of the last pull, which are also those of a pull that is sent ahead.
    pull_options: PullOptions,
    /// The clock of this trainer; `None` if every step has a part of every trainer.
    clock: Option<Clock>,
    /// Whether the gradients of rows are numbers of bf16.
    bf16_gradients: bool,
    /// The number of checkpoints that have begun, and the ticket of each server.
    checkpoints: u64,
    tickets: Option<Vec<u64>>,
    /// The number of rows of the last checkpoint that has begun.
    checkpointed_rows: u64,
    /// The number of names of checkpoints that were drawn.
    cuts: u64,
    /// The watching of the directory that names the servers.
    _watching: Option<Upkeep>,
    /// The step of the checkpoint to which an operator has set the run back.
    restore: Option<u64>,
    /// For each server, the number of this trainer's steps whose updates its tables have, or `None`
    /// if its tables were empty. The list is `None` if the generation began with empty tables, and
    /// after `start`, when all tables are filled.
    kept: Option<Vec<Option<u64>>>,
}

/// A pull that was sent before the caller has asked for it.
#[derive(Debug)]
struct Ahead {
    plan: Arc<LookupPlan>,
    step: u64,
    options: PullOptions,
    /// The number of the frame on each server.
    frames: Vec<u64>,
}

/// The number of plans that a server keeps.
const KEPT_PLANS: usize = 3;

impl RemoteClient {
    /// Opens the tables on servers. The first trainer begins a new generation, with empty tables
    /// unless `options.clock` asks to continue.
    /// The other trainers wait until there is a generation after `options.after`, and enter it.
    ///
    /// # Errors
    /// Returns an error if a setting is wrong, if a server cannot be reached within
    /// `options.patience`, or if another process has taken the place of this trainer.
    pub fn open(mut options: RemoteOptions, tables: TableOptions) -> Result<Self> {
        options.check()?;
        if tables.spill.is_some() {
            return Err(start_error(
                "`run.spill` is set, but the tables are on servers; remove `run.spill`",
            ));
        }
        let names = Names::open(&options.store)?;
        let shape = |spec: &TableSpec| RowShape::new(spec.clone());
        let shapes = tables.tables.iter().map(shape).collect::<zillion_rows::Result<Vec<_>>>()?;
        let owners = Owners::new(options.server_count(), &tables)?;
        let until = Instant::now() + options.patience;
        let log: Arc<dyn ClusterMap> = match &options.directory {
            Some(registered) => registered.directory.clone(),
            None => Arc::new(Generations::open(&options.store.to_string_lossy())?),
        };
        let mut restore = None;
        let (links, generation, entered) = loop {
            let mut links = connect_all(&options, until)?;
            let asked = links.iter().map(Link::welcome);
            let asked = asked.filter(|welcome| welcome.run.as_deref() == Some(&options.run));
            if options.place.is_first() {
                restore = asked.filter_map(|welcome| welcome.restore).min().or(restore);
            }
            let entered = match options.place.is_first() {
                true => begin_generation(&options, &*log, (&tables, &owners), &mut links, until),
                false => enter_generation(&options, &mut links, until),
            };
            let entered = entered.and_then(|(generation, entered)| {
                links.iter_mut().for_each(|link| link.begin_heart(options.deadline));
                if options.place.is_first() && options.place.count > 1 {
                    // Trainers that come now are waited for as long as servers were.
                    let until = Instant::now() + options.patience;
                    wait_for_trainers(&options, generation, &mut links, until).inspect_err(
                        |error| match error.is_rewound() {
                            true => {}
                            false => leave_all(&mut links, error),
                        },
                    )?;
                }
                Ok((generation, entered))
            });
            match entered {
                Ok((generation, entered)) => break (links, generation, entered),
                // A server was lost in between. The next attempt is another generation.
                Err(Error::Rewound { generation, cause }) if Instant::now() < until => {
                    tracing::warn!(generation, cause, "the tables are opened again");
                    options.after = options.after.max(generation);
                    options.clock = None;
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error),
            }
        };
        let kept = entered.map(|entered| {
            entered.iter().map(|entered| entered.is_kept.then_some(entered.applied)).collect()
        });
        let sent = kept.as_ref().and(options.clock).unwrap_or(0);
        let watching = watch_servers(&options, &links);
        let needs_sweep = tables.tables.iter().any(TableSpec::needs_sweep);
        tracing::info!(
            generation,
            servers = links.len(),
            trainer = options.place.index,
            "the tables are open"
        );
        Ok(Self {
            layouts: shapes.iter().map(|shape| shape.layout.clone()).collect(),
            links,
            owners,
            specs: tables.tables,
            place: options.place,
            generation,
            run: options.run,
            names,
            log,
            order: StepOrder::default(),
            rates: Rates::default(),
            needs_sweep,
            plans: VecDeque::new(),
            last_plan: 0,
            announced: None,
            unread: VecDeque::new(),
            takes: VecDeque::new(),
            lent_words: shapes.iter().map(lent_words).collect(),
            ahead: None,
            pull_options: PullOptions::default(),
            clock: options.pace.map(|pace| Clock::new(pace, sent)),
            bf16_gradients: options.bf16_gradients,
            checkpoints: 0,
            tickets: None,
            checkpointed_rows: 0,
            cuts: 0,
            _watching: watching,
            restore,
            kept,
        })
    }

    /// Returns the number of the generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Sends the same question to every server, and returns the bodies of the answers.
    fn ask_all(&mut self, op: Op, fill: impl Fn(&mut Vec<u8>)) -> Result<Vec<Vec<u8>>> {
        self.ask_each(op, |_, body| fill(body))
    }

    /// Sends a question to every server, and returns the bodies of the answers. If several servers
    /// answer with an error, the first one is returned.
    fn ask_each(&mut self, op: Op, fill: impl Fn(usize, &mut Vec<u8>)) -> Result<Vec<Vec<u8>>> {
        let frames = self.send_each(op, fill)?;
        self.answers(&frames)
    }

    /// Sends a question to every server, and returns the numbers of the frames.
    fn send_each(&mut self, op: Op, fill: impl Fn(usize, &mut Vec<u8>)) -> Result<Vec<u64>> {
        self.send_at(op, self.order.step().0, fill)
    }

    /// Sends a question of a step to every server, and returns the numbers of the frames.
    fn send_at(
        &mut self,
        op: Op,
        step: u64,
        fill: impl Fn(usize, &mut Vec<u8>),
    ) -> Result<Vec<u64>> {
        let links = self.links.iter_mut().enumerate();
        links.map(|(server, link)| link.send(op, step, |body| fill(server, body))).collect()
    }

    /// Asks the servers whose tables were empty when the generation began.
    fn ask_empty(&mut self, op: Op, fill: impl Fn(usize, &mut Vec<u8>)) -> Result<()> {
        let Some(kept) = self.kept.clone() else { return self.ask_each(op, fill).map(drop) };
        let step = self.order.step().0;
        let mut frames = Vec::new();
        for (server, link) in self.links.iter_mut().enumerate() {
            if kept[server].is_none() {
                frames.push((server, link.send(op, step, |body| fill(server, body))?));
            }
        }
        let take = |(server, frame): (usize, u64)| self.links[server].take(frame).map(drop);
        let all: Vec<Result<()>> = frames.into_iter().map(take).collect();
        all.into_iter().collect()
    }

    /// Waits for the answers to frames that were sent to all servers.
    fn answers(&mut self, frames: &[u64]) -> Result<Vec<Vec<u8>>> {
        let pairs = self.links.iter_mut().zip(frames);
        // Every answer is taken, also after an error, so that the next call finds its own.
        let mut all: Vec<Result<Vec<u8>>> = pairs.map(|(link, &frame)| link.take(frame)).collect();
        // A server that knows why the generation has ended knows more than one that was only left.
        let is_told = |answer: &Result<Vec<u8>>| {
            matches!(answer, Err(Error::Restored { .. } | Error::Aborted { .. }))
        };
        if let Some(at) = all.iter().position(is_told) {
            return all.swap_remove(at).map(|body| vec![body]);
        }
        all.into_iter().collect()
    }

    /// Drops a pull that was sent ahead, because the rows may change before the next step.
    fn drop_ahead(&mut self) -> Result<()> {
        if let Some(ahead) = self.ahead.take() {
            self.answers(&ahead.frames)?;
        }
        Ok(())
    }
}

impl Drop for RemoteClient {
    /// Tells the servers that the trainer ends in good order.
    fn drop(&mut self) {
        for link in &mut self.links {
            link.close(None);
        }
    }
}

/// Ends the sessions on all servers, and tells the other trainers that this one ends with an error.
fn leave_all(links: &mut [Link], error: &Error) {
    let leave = Leave { code: ErrorCode::Aborted.number(), cause: error.to_string() };
    links.iter_mut().for_each(|link| link.close(Some(&leave)));
}

/// Begins a generation on every server. Returns the answers of the servers if the generation
/// continues with earlier tables.
fn begin_generation(
    options: &RemoteOptions,
    log: &dyn ClusterMap,
    (tables, owners): (&TableOptions, &Owners),
    links: &mut [Link],
    until: Instant,
) -> Result<(u64, Option<Vec<Entered>>)> {
    let newest = links.iter().map(|link| link.welcome().generation).max().unwrap_or(0);
    let alive = links.iter().find(|link| {
        let welcome = link.welcome();
        welcome.is_open
            && welcome.generation > options.after
            && options.after > 0
            && welcome.run.as_deref() == Some(&options.run)
    });
    if let Some(link) = alive {
        return Err(start_error(format!(
            "another process is trainer 0 of the run `{}` (it has opened generation {} on server \
             {}); stop one of the two",
            options.run,
            link.welcome().generation,
            link.server()
        )));
    }
    let recorded = wait_for_map(&options.stop, until, || log.newest(&options.run))?;
    let generation = newest.max(recorded).max(options.after) + 1;
    let servers = links.iter().map(|link| (link.server().to_owned(), link.welcome().boot));
    let entry = MapEntry {
        kind: EntryKind::Generation,
        generation,
        run: options.run.clone(),
        job: options.job_digest.clone(),
        trainers: options.place.count,
        servers: servers.collect(),
        bounds: owners.bounds().to_vec(),
        process: crate::draw::process(),
    };
    if !wait_for_map(&options.stop, until, || log.create(&entry))? {
        return Err(start_error(format!(
            "another process has begun generation {generation} of the run `{}`; only one process \
             may be trainer 0",
            options.run
        )));
    }
    let continues = options.clock.map(|clock| Continues { generation: options.after, clock });
    let mut all = Vec::new();
    for (server, link) in links.iter_mut().enumerate() {
        let open = OpenRun {
            client: crate::draw::process(),
            run: options.run.clone(),
            job: options.job_digest.clone(),
            generation,
            trainers: options.place.count,
            slots: owners.slots(server),
            tables: tables.tables.clone(),
            max_bytes: tables.max_bytes,
            frozen: tables.frozen.iter().map(|table| table.0).collect(),
            follows_checkpoints: tables.follows_checkpoints,
            pace: options.pace,
            continues,
        };
        all.push(link.enter(generation, Op::Open, 0, |body| write_json(body, &open))?);
    }
    Ok((generation, continues.map(|_| all)))
}

/// Waits for a generation, and enters it on every server. Returns the answers of the servers if the
/// generation continues with earlier tables.
fn enter_generation(
    options: &RemoteOptions,
    links: &mut Vec<Link>,
    until: Instant,
) -> Result<(u64, Option<Vec<Entered>>)> {
    let mut join = JoinRun {
        job: options.job_digest.clone(),
        client: crate::draw::process(),
        trainers: options.place.count,
        continues: None,
    };
    loop {
        let first = links[0].welcome();
        let generation = first.generation;
        let is_ready = |link: &Link| {
            let welcome = link.welcome();
            welcome.is_open
                && welcome.generation == generation
                && welcome.run.as_deref() == Some(&options.run)
        };
        if generation > options.after && links.iter().all(is_ready) {
            let trainer = options.place.index as u64;
            // The clock belongs to the generation that this trainer was in.
            let is_next = first.continues == Some(options.after);
            let clock = options.clock.filter(|_| is_next);
            join.continues = clock.map(|clock| Continues { generation: options.after, clock });
            let entered = links.iter_mut().map(|link| {
                link.enter(generation, Op::Join, trainer, |body| write_json(body, &join))
            });
            match entered.collect::<Result<Vec<Entered>>>() {
                Ok(all) => return Ok((generation, join.continues.map(|_| all))),
                // The generation has ended meanwhile. The next one will come.
                Err(error) if error.is_rewound() => {}
                Err(error) => return Err(error),
            }
        }
        if Instant::now() > until {
            return Err(start_error(format!(
                "trainer 0 of the run `{}` has not begun a generation after {} within {:?}; start \
                 it, or look at its log",
                options.run, options.after, options.patience
            )));
        }
        options.stop.check("trainer 0")?;
        std::thread::sleep(LOOK);
        greet_all(options, links, until)?;
    }
}

/// Returns a function that makes the error of an answer that cannot be read.
fn bad_answer(call: &'static str) -> impl Fn(WireError) -> Error {
    move |e| Error::Argument { call, reason: format!("a server's answer cannot be read: {e}") }
}
