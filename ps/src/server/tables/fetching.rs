//! The fetching of the files of a checkpoint from a bucket, before they are restored. Only files
//! with slots of the server are fetched.

use std::io;
use std::path::{Path, PathBuf};

use zillion_device::Files;
use zillion_rows::{PartInfo, TableParts};
use zillion_store::Store;

use super::Tables;
use crate::error::Result;
use crate::folder::check_plain;
use crate::server::home::{Place, RESTORE, store_error};
use crate::wire::RestoreTables;

/// The number of files that are fetched at the same time. A large file is fetched in several ranges
/// at the same time in addition.
const AT_ONCE: usize = 4;

/// A file to fetch.
struct Wanted<'a> {
    object: String,
    to: PathBuf,
    info: &'a PartInfo,
}

impl Tables {
    /// Returns the local folder of a checkpoint. If the store is a bucket, the files with slots of
    /// this server are fetched first, unless the last check has fetched them.
    pub(super) fn fetch(&mut self, call: &'static str, restore: &RestoreTables) -> Result<PathBuf> {
        let store = match &self.home.place {
            Place::Folder(folder) => return folder.path(call, &restore.folder),
            Place::Bucket(store) => store.clone(),
        };
        if !self.home.scratch.path(RESTORE).exists() || restore.only_check {
            self.home.scratch.begin(RESTORE)?;
        }
        let mut wanted = Vec::new();
        for (index, table) in restore.tables.iter().enumerate() {
            self.want(call, &restore.folder, table.files(), table, &mut wanted)?;
            for below in restore.below.get(index).into_iter().flatten() {
                let gone = below.gone.iter().flat_map(|gone| &gone.parts);
                self.want(call, &below.folder, below.parts.iter().chain(gone), table, &mut wanted)?;
            }
        }
        let files = self.home.files.scratch();
        for folder in wanted.iter().filter_map(|wanted| wanted.to.parent()) {
            if !folder.is_dir() {
                files.create_dir(folder).map_err(zillion_rows::Error::Device)?;
            }
        }
        fetch_all(&store, &files, &wanted).map_err(|error| match error {
            Failure::Store(error) => store_error(call, &error),
            Failure::Disk(error) => zillion_rows::Error::Device(error).into(),
        })?;
        self.home.folder_of(call, &restore.folder)
    }

    /// Adds the files of a table that have slots of this server.
    fn want<'a>(
        &self,
        call: &'static str,
        folder: &str,
        files: impl Iterator<Item = &'a PartInfo>,
        table: &TableParts,
        wanted: &mut Vec<Wanted<'a>>,
    ) -> Result<()> {
        let position = self.layouts.iter().position(|layout| layout.name == table.table);
        let owned = position.map(|at| self.client.owned(zillion_feature::TableId(at as u16)));
        let local = self.home.folder_of(call, folder)?;
        for info in files {
            check_plain(call, &info.file)?;
            let has_own = match (info.slots, &owned) {
                (Some((start, end)), Some(owned)) => start < owned.end && owned.start < end,
                _ => true,
            };
            if has_own {
                let (object, to) = (format!("{folder}/{}", info.file), local.join(&info.file));
                wanted.push(Wanted { object, to, info });
            }
        }
        Ok(())
    }
}

/// An error of the store, or of the scratch folder.
enum Failure {
    Store(zillion_store::Error),
    Disk(zillion_device::DeviceError),
}

/// Fetches files on several threads.
fn fetch_all(store: &Store, files: &Files, wanted: &[Wanted<'_>]) -> Result<(), Failure> {
    let fetch_share = |first: usize| {
        wanted
            .iter()
            .skip(first)
            .step_by(AT_ONCE)
            .try_for_each(|file| fetch_one(store, files, file))
    };
    std::thread::scope(|scope| {
        let shares: Vec<_> =
            (0..AT_ONCE).map(|first| scope.spawn(move || fetch_share(first))).collect();
        shares.into_iter().try_for_each(|share| {
            share.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Fetches one file, unless it is there. Its hash is checked when the file is opened.
fn fetch_one(store: &Store, files: &Files, wanted: &Wanted<'_>) -> Result<(), Failure> {
    let Wanted { object, to, info } = wanted;
    if is_there(to, info.bytes) {
        return Ok(());
    }
    let fetch = store.fetch(object, info.bytes).map_err(Failure::Store)?;
    let Some(mut fetch) = fetch else { return Ok(()) };
    let mut failure = None;
    let written = files.create_file(to, |file| {
        while let Some(piece) = fetch.next_piece() {
            match piece {
                Ok(piece) => file.write_all(&piece)?,
                Err(error) => {
                    failure = Some(error);
                    return Err(io::Error::other("the store does not deliver the file"));
                }
            }
        }
        Ok(())
    });
    match failure {
        Some(error) => Err(Failure::Store(error)),
        None => written.map(drop).map_err(Failure::Disk),
    }
}

fn is_there(path: &Path, bytes: u64) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() == bytes)
}
