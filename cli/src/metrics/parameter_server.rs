//! The series of a parameter server, made from its figures on each request.
//!
//! All series are made anew for each request. So the counters of tables begin at 0 with each
//! generation, whose tables are new, and trainers that have left have no series.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Registry, Result};
use zillion_ps::server::{FiguresHandle, ServerFigures};

use super::maker::Maker;
use super::tables::Tables;

/// A function that reads the value of a series from the figures of a server.
type Figure = fn(&ServerFigures) -> u64;

/// The gauges without labels. Each has the part of its name after `zillion_ps_`, a help text and a
/// function for its value.
const GAUGES: [(&str, &str, Figure); 7] = [
    ("generation", "Generation that the server serves or has served last; 0: none.", |f| {
        f.generation
    }),
    ("generation_open", "1 while a generation goes on, otherwise 0.", |f| u64::from(f.is_open)),
    ("slots", "Slots of 4,096 whose keys the server holds.", |f| {
        f.slots[1].saturating_sub(f.slots[0]) as u64
    }),
    ("step", "Newest step of a trainer's frame.", |f| f.step),
    ("open_connections", "Open connections.", |f| f.connections),
    ("bytes_in_flight", "Bytes of the frames that wait for the tables.", |f| f.bytes_in_flight),
    ("bytes_in_flight_limit", "Most bytes of frames that may wait for the tables.", |f| {
        f.bytes_in_flight_limit
    }),
];

/// The counters without labels, as above.
const COUNTERS: [(&str, &str, Figure); 8] = [
    ("generations_ended_total", "Generations that have ended.", |f| f.generations_ended),
    ("accepted_connections_total", "Connections that were accepted.", |f| f.accepted),
    (
        "refused_connections_total",
        "Connections that were closed at once, because too many were open.",
        |f| f.refused_connections,
    ),
    ("received_bytes_total", "Bytes that were received.", |f| f.received_bytes),
    ("sent_bytes_total", "Bytes that were sent.", |f| f.sent_bytes),
    ("bad_frames_total", "Frames that were not valid.", |f| f.bad_frames),
    (
        "repeated_frames_total",
        "Frames that had arrived before; the kept answer was sent again.",
        |f| f.repeated_frames,
    ),
    ("stale_frames_total", "Frames of an earlier generation, which were refused.", |f| {
        f.stale_frames
    }),
];

/// The series of a parameter server.
pub(crate) struct ParameterServerMetrics(FiguresHandle);

impl ParameterServerMetrics {
    pub(crate) fn new(figures: FiguresHandle) -> Self {
        Self(figures)
    }
}

impl Collector for ParameterServerMetrics {
    /// Returns nothing, because the names are known only to [`families`]. No other collector of the
    /// process has names that begin with `zillion_ps_` or `zillion_embedding_`.
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        families(&self.0.read()).unwrap_or_else(|error| {
            tracing::error!("the series of the server cannot be made: {error}");
            Vec::new()
        })
    }
}

/// Makes the series of a server.
///
/// # Errors
/// Returns an error if a name is taken twice, which would be a defect.
fn families(figures: &ServerFigures) -> Result<Vec<MetricFamily>> {
    let registry = Registry::new();
    let make = Maker(&registry);
    let name = |name: &str| format!("zillion_ps_{name}");
    for (end, help, figure) in GAUGES {
        make.gauge(&name(end), help)?.set(figure(figures) as f64);
    }
    for (end, help, figure) in COUNTERS {
        make.counter(&name(end), help)?.inc_by(figure(figures) as f64);
    }
    let help = "Seconds since the last sign of life of a trainer.";
    let silent = make.gauges(&name("trainer_silent_seconds"), help, &["trainer"])?;
    for (trainer, seconds) in &figures.silent_seconds {
        silent.with_label_values(&[trainer.to_string()]).set(*seconds);
    }
    let help = "Steps of a trainer whose updates are applied.";
    let applied = make.gauges(&name("applied_steps"), help, &["trainer"])?;
    for (trainer, &steps) in figures.applied_steps.iter().enumerate() {
        applied.with_label_values(&[trainer.to_string()]).set(steps as f64);
    }
    let help = "Pulls by the number of steps of a trainer that their rows lacked.";
    let stale = make.counters(&name("stale_pulls_total"), help, &["staleness"])?;
    for (staleness, &pulls) in figures.stale_pulls.iter().enumerate() {
        stale.with_label_values(&[staleness.to_string()]).inc_by(pulls as f64);
    }
    let frames = make.counters(&name("frames_total"), "Frames by operation.", &["operation"])?;
    let help = "Time of work on the frames of an operation.";
    let seconds = make.counters(&name("work_seconds_total"), help, &["operation"])?;
    for (operation, count, work) in &figures.operations {
        frames.with_label_values(&[operation]).inc_by(*count as f64);
        seconds.with_label_values(&[operation]).inc_by(*work);
    }
    Tables::new(&make)?.update(&figures.tables);
    Ok(registry.gather())
}

#[cfg(test)]
mod tests {
    use zillion_embedding::{Counters, TableStatistics};

    use super::*;

    fn text_of(figures: &ServerFigures) -> String {
        prometheus::TextEncoder::new().encode_to_string(&families(figures).unwrap()).unwrap()
    }

    #[test]
    fn series_are_those_of_the_present_generation() {
        let table = |pulled| TableStatistics {
            table: "user".to_owned(),
            rows: 5,
            counters: Counters { pulled, ..Counters::default() },
            ..TableStatistics::default()
        };
        let mut figures = ServerFigures {
            generation: 7,
            is_open: true,
            slots: [64, 128],
            silent_seconds: vec![(0, 0.5), (1, 12.0)],
            applied_steps: vec![9, 7],
            stale_pulls: vec![2, 5],
            stale_frames: 3,
            operations: vec![("pull", 4, 0.25)],
            tables: vec![table(90)],
            ..ServerFigures::default()
        };
        let has = |text: &str, line: &str| text.lines().any(|l| l == line);
        let text = text_of(&figures);
        for line in [
            "zillion_ps_generation 7",
            "zillion_ps_generation_open 1",
            "zillion_ps_slots 64",
            "zillion_ps_trainer_silent_seconds{trainer=\"1\"} 12",
            "zillion_ps_applied_steps{trainer=\"1\"} 7",
            "zillion_ps_stale_pulls_total{staleness=\"1\"} 5",
            "zillion_ps_stale_frames_total 3",
            "zillion_ps_frames_total{operation=\"pull\"} 4",
            "zillion_ps_work_seconds_total{operation=\"pull\"} 0.25",
            "zillion_embedding_pulled_keys_total{table=\"user\"} 90",
        ] {
            assert!(has(&text, line), "{line} is not in\n{text}");
        }
        // The next generation has new tables and one trainer.
        figures.generation = 8;
        figures.silent_seconds.pop();
        figures.applied_steps.clear();
        figures.tables = vec![table(10)];
        let text = text_of(&figures);
        assert!(has(&text, "zillion_embedding_pulled_keys_total{table=\"user\"} 10"), "{text}");
        assert!(!text.contains("trainer=\"1\""), "{text}");
    }
}
