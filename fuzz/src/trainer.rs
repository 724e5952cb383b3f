//! The targets of the crate `trainer`: job files, and manifests of checkpoints.

use std::fs;

use zillion_feature::{Cursor, HASH_ID, Statistics};
use zillion_nn::optim::{Plateau, PlateauSpec};
use zillion_rows::{ListedParts, PartInfo, RowDigest, TableParts};
use zillion_trainer::{
    Best, Checkpoint, FileDigest, Job, KeptAlgorithm, Manifest, ProductChoice, Progress, TableTime,
    TrainingFile,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 2] = [&JOB_FILES, &CHECKPOINT_MANIFESTS];

/// The reader of job files. It also prints the job with the defaults of all settings.
pub const JOB_FILES: Target = Target {
    name: "job_files",
    read: |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let Ok(table) = text.parse::<toml::Table>() else { return false };
        let Ok(job) = Job::from_value(table.into()) else { return false };
        let _ = job.portable();
        job.in_force().is_ok()
    },
    seeds: || {
        let jobs: [&str; 3] = [
            include_str!("../../examples/adult/job.toml"),
            include_str!("../../examples/beauty/job.toml"),
            include_str!("../../examples/clicks/job.toml"),
        ];
        jobs.map(|job| job.as_bytes().to_vec()).into()
    },
};

/// The reader of the manifest of a checkpoint. The input is the JSON of the manifest. The target
/// adds the first line, which contains the hash of the JSON.
pub const CHECKPOINT_MANIFESTS: Target = Target {
    name: "checkpoint_manifests",
    read: |bytes| {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let head = format!("zillion-checkpoint 1 {}\n", blake3::hash(bytes).to_hex());
        let stored = [head.as_bytes(), bytes, b"\n"].concat();
        fs::write(folder.path().join("MANIFEST"), stored).expect("a file can be written");
        let Ok(checkpoint) = Checkpoint::open(folder.path()) else { return false };
        for table in &checkpoint.manifest.tables {
            let _ = (table.full_rows(), table.files().count(), table.files_below().count());
        }
        checkpoint.job().is_ok()
    },
    seeds: || vec![serde_json::to_vec_pretty(&sample()).expect("a manifest can be written")],
};

fn sample() -> Manifest {
    let part = |kind: &str| PartInfo {
        file: format!("tables/user/{kind}-00000.arrow"),
        rows: 10,
        bytes: 2000,
        blake3: blake3::hash(kind.as_bytes()).to_hex().to_string(),
        slots: Some((0, 4096)),
    };
    let job: toml::Table =
        include_str!("../../examples/clicks/job.toml").parse().expect("the sample is TOML");
    Manifest {
        stream: None,
        hash: HASH_ID.to_owned(),
        step: 100,
        parent: None,
        cursor: Cursor { epoch: 0, row: 4096 },
        progress: Progress {
            plateau: Plateau::new(PlateauSpec::default(), 0.001),
            best: Some(Best { epoch: 0, step: 50, valid_auc: Some(0.75) }),
            loss_sum: 12.5,
            left_out: 1,
            rejected: 2,
            newest_event_ms: Some(1_800_000_000_000),
            event_clock: Some(TableTime { first: 1_700_000_000, now: 1_800_000_000 }),
            begun_at: 3,
            lost_pushes: 4,
        },
        statistics: Statistics::default(),
        dense: FileDigest::of(b"dense"),
        frequencies: Some(FileDigest::of(b"frequencies")),
        tables: vec![TableParts {
            table: "user".to_owned(),
            rows: 10,
            dirty_epoch: 1,
            parts: vec![part("part")],
            narrow: Some(ListedParts::of(vec![part("narrow")])),
            candidates: Some(ListedParts::of(vec![part("candidates")])),
            filter: None,
            changes: None,
            digest: Some(RowDigest::default()),
        }],
        files: vec![TrainingFile { name: "train.csv".to_owned(), bytes: 12345, sample: None }],
        products: Some(ProductChoice {
            instructions: Some("amx-bf16".to_owned()),
            gpu: "a GPU".to_owned(),
            library: Some("13.1".to_owned()),
            algorithms: [("tf32 nt 8x8x8".to_owned(), KeptAlgorithm([7; 64]))].into(),
        }),
        job: job.into(),
    }
}
