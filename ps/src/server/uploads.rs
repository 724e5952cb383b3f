//! The uploading of files that a server has written into its scratch folder. Threads of their own
//! send the files, so that the threads of the tables do not wait for the network.
//!
//! # Invariants
//! * A file is removed from the scratch folder after the store has it. The files that wait take at
//!   most [`MOST_BYTES`], plus one file for each thread that writes; a writer waits for room.
//! * After the first failure no file is sent, and every later file is refused.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use zillion_device::{DeviceError, durable, mmap};
use zillion_store::{Store, StoreStop, fan_out};

use crate::error::{Result, start_error};

/// The largest number of bytes of files that wait for the store.
const MOST_BYTES: u64 = 256 << 20;

/// The number of files that are sent at the same time. A large file is sent in several parts at the
/// same time in addition.
const THREADS: usize = 4;

/// The names of the objects.
#[derive(Clone, Debug)]
pub(super) enum Naming {
    /// The path of a file below the scratch folder, below a folder of the store.
    Below(String),
    /// The name of a file, which is the hash of its bytes, in a folder of the store for each first
    /// byte of the hash.
    ByHash(String),
}

/// The files of one checkpoint or layer on their way to the store. Files that wait are dropped with
/// the value.
#[derive(Debug)]
pub(super) struct Uploads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    stop: StoreStop,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    /// The folder of the files.
    folder: PathBuf,
    naming: Naming,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(PathBuf, u64)>,
    /// The number of bytes of the files in `waiting`.
    bytes: u64,
    /// The number of files that are being sent.
    sending: usize,
    failure: Option<String>,
    is_closed: bool,
}

impl Uploads {
    /// Begins to send the files of a folder to a store.
    pub(super) fn begin(store: &Store, folder: &Path, naming: Naming) -> Result<Self> {
        let stop = StoreStop::default();
        let shared = Arc::new(Shared {
            store: store.with_stop(stop.clone()),
            folder: folder.to_owned(),
            naming,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut uploads = Self { shared, threads: Vec::new(), stop };
        for _ in 0..THREADS {
            let shared = uploads.shared.clone();
            let thread = std::thread::Builder::new().name("ps-upload".to_owned());
            let thread = thread
                .spawn(move || shared.send_all())
                .map_err(|e| start_error(format!("cannot start a thread for uploads: {e}")))?;
            uploads.threads.push(thread);
        }
        Ok(uploads)
    }

    /// Returns the receiver of the files.
    pub(super) fn delivery(&self) -> Arc<dyn durable::Delivery> {
        self.shared.clone()
    }

    /// Returns whether [`Uploads::finish`] would return at once.
    pub(super) fn is_ready(&self) -> bool {
        self.shared.lock().is_settled()
    }

    /// Waits until the store has all files.
    ///
    /// # Errors
    /// Returns an error if a file could not be sent.
    pub(super) fn finish(self) -> Result<()> {
        let mut state = self.shared.lock();
        while !state.is_settled() {
            state = self.shared.wait(state);
        }
        match state.failure.take() {
            None => Ok(()),
            Some(reason) => {
                let error =
                    DeviceError::file("upload", &self.shared.folder, io::Error::other(reason));
                Err(zillion_rows::Error::Device(error).into())
            }
        }
    }
}

impl Drop for Uploads {
    /// Ends the threads. A file that is being sent is not waited for.
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.is_closed = true;
            state.waiting.clear();
            if state.sending > 0 {
                self.stop.within(Duration::ZERO);
            }
        }
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl State {
    fn is_settled(&self) -> bool {
        self.failure.is_some() || self.waiting.is_empty() && self.sending == 0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one file after another until the value is dropped.
    fn send_all(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let Some((file, bytes)) = state.waiting.pop_front() else {
                state = self.wait(state);
                continue;
            };
            state.bytes -= bytes;
            state.sending += 1;
            drop(state);
            let sent = self.send(&file);
            state = self.lock();
            state.sending -= 1;
            if let Err(reason) = sent {
                state.failure.get_or_insert(reason);
                state.waiting.clear();
                state.bytes = 0;
            }
            self.changed.notify_all();
        }
    }

    /// Sends one file, and removes it.
    fn send(&self, file: &Path) -> Result<(), String> {
        let name = self.name_of(file)?;
        let bytes = mmap::map(file).map_err(|e| e.to_string())?;
        self.store.put(&name, bytes).map_err(|e| e.to_string())?;
        std::fs::remove_file(file).map_err(|e| format!("cannot remove {}: {e}", file.display()))
    }

    /// Returns the name of the object of a file.
    fn name_of(&self, file: &Path) -> Result<String, String> {
        let below = file.strip_prefix(&self.folder).ok().and_then(Path::to_str);
        let below =
            below.ok_or_else(|| format!("{} is not a file of the store", file.display()))?;
        Ok(match &self.naming {
            Naming::Below(folder) => format!("{folder}/{below}"),
            Naming::ByHash(folder) => fan_out(folder, below),
        })
    }
}

impl durable::Delivery for Shared {
    fn deliver(&self, file: &Path) -> io::Result<()> {
        let bytes = std::fs::metadata(file)?.len();
        let mut state = self.lock();
        while state.bytes > MOST_BYTES && state.failure.is_none() && !state.is_closed {
            state = self.wait(state);
        }
        if let Some(reason) = &state.failure {
            return Err(io::Error::other(reason.clone()));
        }
        if state.is_closed {
            return Err(io::Error::other("the checkpoint was abandoned"));
        }
        state.waiting.push_back((file.to_owned(), bytes));
        state.bytes += bytes;
        self.changed.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zillion_device::Files;

    use super::*;

    fn store(folder: &Path) -> Store {
        Store::create_at(&folder.display().to_string(), Files::new()).unwrap()
    }

    #[test]
    fn files_get_to_the_store_and_leave_the_scratch_folder() {
        let (home, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = store(home.path());
        let naming = Naming::Below("runs/a".to_owned());
        let uploads = Uploads::begin(&store, scratch.path(), naming).unwrap();
        let files = Files::new().scratch().delivering(uploads.delivery());
        files.create_dir(scratch.path().join("tables")).unwrap();
        for number in 0..20 {
            let path = scratch.path().join(format!("tables/part-{number}"));
            files.create_file(path, |file| file.write_all(&[number; 100])).unwrap();
        }
        uploads.finish().unwrap();
        for number in 0..20 {
            let bytes = store.get(&format!("runs/a/tables/part-{number}")).unwrap();
            assert_eq!(bytes.as_deref(), Some(&[number; 100][..]));
        }
        assert_eq!(std::fs::read_dir(scratch.path().join("tables")).unwrap().count(), 0);
        // A file that is named by its hash lies in a folder of the first letters.
        let uploads =
            Uploads::begin(&store, scratch.path(), Naming::ByHash("m/files".to_owned())).unwrap();
        let files = files.delivering(uploads.delivery());
        let named = files.write_named_by_content(scratch.path(), |file| {
            file.write_all(b"rows")?;
            Ok("abcd.arrow".to_owned())
        });
        named.unwrap();
        uploads.finish().unwrap();
        assert_eq!(store.get("m/files/ab/abcd.arrow").unwrap().as_deref(), Some(&b"rows"[..]));
    }

    #[test]
    fn a_failure_reaches_the_writer() {
        let (home, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = store(home.path());
        // The name of the object is that of a folder, so the store refuses it.
        std::fs::create_dir_all(home.path().join("runs/a/one/two")).unwrap();
        let naming = Naming::Below("runs/a".to_owned());
        let uploads = Uploads::begin(&store, scratch.path(), naming).unwrap();
        let files = Files::new().scratch().delivering(uploads.delivery());
        files.create_file(scratch.path().join("one"), |file| file.write_all(b"1")).unwrap();
        while !uploads.is_ready() {
            std::thread::yield_now();
        }
        let refused = files.create_file(scratch.path().join("two"), |file| file.write_all(b"2"));
        assert!(refused.unwrap_err().to_string().contains("runs/a/one"));
        let error = uploads.finish().unwrap_err().to_string();
        assert!(error.contains("runs/a/one"), "{error}");
    }
}
