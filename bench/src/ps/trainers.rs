//! The trainers of the benchmark, each with a client and a thread of its own.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_embedding::Rates;
use zillion_feature::{LookupPlan, RowBuffer, Step};
use zillion_ps::{
    ClientTls, Exchanging as _, PullOptions, PushMode, RemoteClient, RemoteOptions,
    StepClient as _, TableAccess as _, TableOptions, TrainerPlace, server_state,
};
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use super::process::ParameterServer;
use crate::args::BenchPsArgs;
use crate::embedding::Planner;
use crate::load::figures::Percentiles;

/// The number of rows that each trainer makes in one step.
const INSERTED: u64 = 100_000;
/// The number of steps before the measurement of a figure, which also show how long a step takes.
const WARM_UP: u64 = 20;
/// The gradient of each weight.
const GRADIENT: f32 = 1e-3;
/// The time after which the server is lost.
const DEADLINE: Duration = Duration::from_secs(60);

/// The figures of the steps with one size of requests.
#[derive(Serialize)]
pub(super) struct Figure {
    keys_a_request: usize,
    /// The law by which keys were drawn.
    law: &'static str,
    /// The number of steps of each trainer.
    steps: u64,
    pull: Call,
    push: Call,
}

/// The figures of one kind of call.
#[derive(Serialize)]
struct Call {
    /// The keys per second of all trainers together, in millions.
    mkeys_s: f64,
    #[serde(flatten)]
    latency: Percentiles,
    /// The share of the time in which the server has worked on the tables: it reads the frame,
    /// reads or changes rows, and makes the answer. The rest is the work of the client, the
    /// sockets, the checks of received bytes and the wait for a turn.
    table_share: f64,
}

impl Call {
    /// Computes the figures from the times of the calls of all trainers. `worked` is the number of
    /// seconds that the server has worked on them.
    fn of(times: Vec<Duration>, (keys, trainers): (f64, f64), worked: f64) -> Self {
        let busy = times.iter().sum::<Duration>().as_secs_f64() / trainers;
        Self {
            mkeys_s: keys / busy / 1e6,
            latency: Percentiles::of(times),
            table_share: worked / busy,
        }
    }
}

/// The times of the calls of one trainer.
#[derive(Default)]
pub(super) struct Times {
    pub(super) pulls: Vec<Duration>,
    pub(super) pushes: Vec<Duration>,
}

/// All trainers of the run.
pub(super) struct Trainers {
    address: String,
    tls: Option<ClientTls>,
    all: Vec<Trainer>,
}

/// One trainer, with its client and its buffers.
pub(super) struct Trainer {
    pub(super) client: RemoteClient,
    step: u64,
    rows: RowBuffer,
    gradients: RowBuffer,
}

impl Trainers {
    /// Opens the run with one table.
    pub(super) fn open(server: &ParameterServer, store: &Path, args: &BenchPsArgs) -> Result<Self> {
        let (address, tls) = (server.address(), server.tls());
        let count = args.clients.get();
        let place = |index| TrainerPlace { index, count };
        let open = |index| Trainer::open((address, 0), tls, store, args.dim, place(index));
        let all = in_parallel((0..count).map(|index| move || open(index)).collect())?;
        Ok(Self { address: address.to_owned(), tls: tls.cloned(), all })
    }

    /// Makes `rows` rows by pushes. Returns the keys per second of the pushes, in millions.
    pub(super) fn fill(&mut self, rows: u64) -> Result<f64> {
        let part = rows.div_ceil(self.all.len() as u64);
        let steps = part.div_ceil(INSERTED);
        let works = self.all.iter_mut().zip(0u64..).map(|(trainer, index)| {
            move || {
                let mut planner = Planner::new()?;
                let mut times = Times::default();
                for step in 0..steps {
                    let end = ((index + 1) * part).min(rows);
                    let first = (index * part + step * INSERTED).min(end);
                    let plan = Arc::new(planner.plan(first..(first + INSERTED).min(end)));
                    trainer.begin()?;
                    trainer.push(&plan, &mut times)?;
                }
                Ok(times.pushes.iter().sum::<Duration>())
            }
        });
        let busy: Duration = in_parallel(works.collect())?.into_iter().sum();
        let made = self.all[0].client.stats()?[0].rows;
        if made != rows {
            bail!("the server has {made} rows after the pushes of {rows} keys");
        }
        Ok(rows as f64 * self.all.len() as f64 / busy.as_secs_f64() / 1e6)
    }

    /// Measures steps with the plans.
    pub(super) fn measure(
        &mut self,
        (keys_a_request, law): (usize, &'static str),
        plans: &[Arc<LookupPlan>],
        duration: Duration,
    ) -> Result<Figure> {
        let began = Instant::now();
        self.steps(plans, WARM_UP)?;
        let step = began.elapsed().as_secs_f64() / WARM_UP as f64;
        let steps = ((duration.as_secs_f64() / step) as u64).max(WARM_UP);
        let before = self.work()?;
        let times = self.steps(plans, steps)?;
        let after = self.work()?;
        let keys = (keys_a_request * self.all.len()) as f64 * steps as f64;
        let trainers = self.all.len() as f64;
        let mut pulls = Vec::new();
        let mut pushes = Vec::new();
        for trainer in times {
            pulls.extend(trainer.pulls);
            pushes.extend(trainer.pushes);
        }
        Ok(Figure {
            keys_a_request,
            law,
            steps,
            pull: Call::of(pulls, (keys, trainers), after[0] - before[0]),
            push: Call::of(pushes, (keys, trainers), after[1] - before[1]),
        })
    }

    /// Makes steps with all trainers, and returns the times of each trainer.
    fn steps(&mut self, plans: &[Arc<LookupPlan>], steps: u64) -> Result<Vec<Times>> {
        let trainers = self.all.len();
        let works = self.all.iter_mut().enumerate().map(|(index, trainer)| {
            move || {
                let mut times = Times::default();
                let first = index * plans.len() / trainers;
                for plan in plans.iter().cycle().skip(first).take(steps as usize) {
                    trainer.step(plan, &mut times)?;
                }
                Ok(times)
            }
        });
        in_parallel(works.collect())
    }

    /// Returns the only trainer of a run.
    pub(super) fn only(&mut self) -> Result<&mut Trainer> {
        match &mut self.all[..] {
            [trainer] => Ok(trainer),
            all => bail!("the benchmark has {} trainers, but this figure needs one", all.len()),
        }
    }

    /// Returns the seconds that the server has worked on pulls and on pushes.
    fn work(&self) -> Result<[f64; 2]> {
        let state = server_state(&self.address, None, self.tls.as_ref(), DEADLINE)?;
        let seconds = |names: &[&str]| {
            let named = state.operations.iter().filter(|(name, ..)| names.contains(&name.as_str()));
            named.map(|&(_, _, seconds)| seconds).sum()
        };
        Ok([seconds(&["pull"]), seconds(&["push", "apply"])])
    }
}

impl Trainer {
    /// Opens the run of the benchmark on the server at an address, in a generation after another
    /// one.
    pub(super) fn open(
        (address, after): (&str, u64),
        tls: Option<&ClientTls>,
        store: &Path,
        dim: NonZeroUsize,
        place: TrainerPlace,
    ) -> Result<Self> {
        let options = RemoteOptions {
            servers: vec![address.to_owned()],
            directory: None,
            place,
            run: "bench".to_owned(),
            job_digest: "bench".to_owned(),
            token: None,
            tls: tls.cloned(),
            pace: None,
            bf16_gradients: false,
            store: store.to_owned(),
            deadline: DEADLINE,
            after,
            patience: DEADLINE,
            stop: Default::default(),
            clock: None,
        };
        let tables = TableOptions::new(vec![spec(dim.get())], NonZeroUsize::MIN);
        Ok(Self {
            client: RemoteClient::open(options, tables)?,
            step: 0,
            rows: RowBuffer::default(),
            gradients: RowBuffer::default(),
        })
    }

    /// Makes one step: a pull and a push of the same keys.
    pub(super) fn step(&mut self, plan: &Arc<LookupPlan>, times: &mut Times) -> Result<()> {
        self.begin()?;
        self.pull(plan, times)?;
        self.push(plan, times)
    }

    fn begin(&mut self) -> Result<()> {
        self.step += 1;
        Ok(self.client.begin_step(Step(self.step), Rates::default())?)
    }

    fn pull(&mut self, plan: &Arc<LookupPlan>, times: &mut Times) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let began = Instant::now();
        self.rows = self.client.pull(plan, PullOptions::default(), rows)?;
        times.pulls.push(began.elapsed());
        Ok(())
    }

    /// Pushes the same gradient for each weight, and ends the step.
    fn push(&mut self, plan: &Arc<LookupPlan>, times: &mut Times) -> Result<()> {
        let stride = self.client.layouts()[0].stride;
        let mut gradients = std::mem::take(&mut self.gradients);
        if gradients
            .tables
            .first()
            .is_none_or(|t| t.values.len() != plan.tables[0].keys.len() * stride)
        {
            gradients.reshape([(plan.tables[0].keys.len(), stride)].into_iter());
            gradients.tables[0].values.fill(GRADIENT);
        }
        let is_alone = self.client.place() == TrainerPlace::ALONE;
        let began = Instant::now();
        let mode = if is_alone { PushMode::Apply } else { PushMode::Stage };
        self.gradients = self.client.push(plan, gradients, mode)?;
        if !is_alone {
            self.client.apply(1.0)?;
        }
        times.pushes.push(began.elapsed());
        Ok(())
    }
}

/// Returns the table of the benchmark.
fn spec(dim: usize) -> TableSpec {
    let rule = OptimizerSpec::Adagrad { lr: 0.02, initial_accumulator: 0.1, eps: 1e-10 };
    let vector = InitializerSpec::Normal { mean: 0.0, std: 0.01 };
    let linear = InitializerSpec::Constant { value: 0.0 };
    let segments = vec![
        SegmentSpec::new("linear", 1, linear, rule),
        SegmentSpec::new("vector", dim, vector, rule),
    ];
    TableSpec { seed: 1, ..TableSpec::new("ids", segments) }
}

/// Does each work on a thread of its own, and returns the results in their order.
fn in_parallel<T: Send>(works: Vec<impl FnOnce() -> Result<T> + Send>) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = works.into_iter().map(|work| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}
