//! The folder of compiled kernels.
//!
//! # Crash consistency
//!
//! A file appears under its name only when it is whole. Each file has a checksum; a file that is
//! damaged is treated as absent, and is written again.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::OPTIONS;
use crate::durable::Files;
use crate::gpu::error::GpuError;
use crate::gpu::kernels;
use crate::gpu::launch::Unit;

/// The first bytes of a file, which also say its version.
const MAGIC: &[u8; 8] = b"ZNCUBIN1";
/// The number of bytes before the machine code: the magic and the hash of the rest.
const HEADER: usize = 8 + 32;
/// The largest file that is read. All kernels together have a few mebibytes.
const LARGEST: u64 = 256 << 20;

/// The folder in which compiled kernels are kept, or none.
#[derive(Clone, Debug)]
pub struct KernelFolder(Option<PathBuf>);

impl fmt::Display for KernelFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => write!(f, "{}", path.display()),
            None => f.write_str("(none)"),
        }
    }
}

impl KernelFolder {
    /// Uses the folder at `path`, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be created.
    pub fn at(path: &Path) -> Result<Self, GpuError> {
        Files::new().create_dir(path).map_err(|error| GpuError::Cache(error.to_string()))?;
        Ok(Self(Some(path.to_path_buf())))
    }

    /// Returns a folder that keeps nothing.
    pub fn none() -> Self {
        Self(None)
    }

    /// Returns the machine code of a unit if the folder has it. If `version` is `None`, there is no
    /// compiler, and code of any version of it is taken.
    pub(super) fn read(
        &self,
        unit: &Unit,
        arch: &str,
        version: Option<&str>,
    ) -> Result<Option<Vec<u8>>, GpuError> {
        let Some(folder) = &self.0 else { return Ok(None) };
        if let Some(version) = version {
            return Ok(read_file(&folder.join(file_name(unit, arch, version))));
        }
        let [start, end] = name_ends(unit, arch);
        let mut names: Vec<String> = fs::read_dir(folder)
            .map_err(|error| GpuError::Cache(format!("{}: {error}", folder.display())))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with(&start) && name.ends_with(&end))
            .collect();
        names.sort();
        Ok(names.iter().rev().find_map(|name| read_file(&folder.join(name))))
    }

    pub(super) fn write(
        &self,
        unit: &Unit,
        arch: &str,
        version: &str,
        cubin: &[u8],
    ) -> Result<(), GpuError> {
        let Some(folder) = &self.0 else { return Ok(()) };
        let mut bytes = Vec::with_capacity(HEADER + cubin.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(blake3::hash(cubin).as_bytes());
        bytes.extend_from_slice(cubin);
        Files::new()
            .write_bytes(folder.join(file_name(unit, arch, version)), &bytes)
            .map_err(|error| GpuError::Cache(error.to_string()))
    }
}

/// Returns the machine code in a file, or `None` if the file is missing or damaged.
fn read_file(path: &Path) -> Option<Vec<u8>> {
    if fs::metadata(path).ok()?.len() > LARGEST {
        return None;
    }
    let mut bytes = fs::read(path).ok()?;
    let hash = bytes.get(MAGIC.len()..HEADER)?;
    if &bytes[..MAGIC.len()] != MAGIC || hash != blake3::hash(&bytes[HEADER..]).as_bytes() {
        return None;
    }
    bytes.drain(..HEADER);
    Some(bytes)
}

/// Returns the parts of a file's name before and after the version of the compiler.
fn name_ends(unit: &Unit, arch: &str) -> [String; 2] {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for (name, text) in kernels::HEADERS {
        add(name);
        add(text);
    }
    add(unit.source);
    OPTIONS.iter().for_each(|option| add(option));
    add(arch);
    let hash: String = hasher.finalize().to_hex().chars().take(32).collect();
    [format!("{}.{arch}.nvrtc", unit.name), format!(".{hash}.cubin")]
}

fn file_name(unit: &Unit, arch: &str, version: &str) -> String {
    let [start, end] = name_ends(unit, arch);
    format!("{start}{version}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Unit = Unit { name: "one", source: "void one() {}" };

    #[test]
    fn a_file_is_found_by_its_content_and_never_half() {
        let place = tempfile::tempdir().unwrap();
        let folder = KernelFolder::at(&place.path().join("kernels")).unwrap();
        assert_eq!(folder.read(&UNIT, "sm_90", Some("13.0")).unwrap(), None);
        folder.write(&UNIT, "sm_90", "13.0", b"code").unwrap();
        assert_eq!(folder.read(&UNIT, "sm_90", Some("13.0")).unwrap().unwrap(), b"code");
        assert_eq!(folder.read(&UNIT, "sm_90", None).unwrap().unwrap(), b"code");
        assert_eq!(folder.read(&UNIT, "sm_90", Some("13.1")).unwrap(), None);
        assert_eq!(folder.read(&UNIT, "sm_80", None).unwrap(), None);
        let other = Unit { source: "void one() { }", ..UNIT };
        assert_eq!(folder.read(&other, "sm_90", None).unwrap(), None);

        let path = place.path().join("kernels").join(file_name(&UNIT, "sm_90", "13.0"));
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(folder.read(&UNIT, "sm_90", None).unwrap(), None, "{length} bytes");
        }
        for byte in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[byte] ^= 1;
            fs::write(&path, &wrong).unwrap();
            assert_eq!(folder.read(&UNIT, "sm_90", None).unwrap(), None, "byte {byte}");
        }
        folder.write(&UNIT, "sm_90", "13.0", b"code").unwrap();
        assert!(folder.read(&UNIT, "sm_90", None).unwrap().is_some());
        assert!(KernelFolder::none().read(&UNIT, "sm_90", None).unwrap().is_none());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, b"").unwrap();
        let error = KernelFolder::at(&file.join("kernels")).unwrap_err().to_string();
        assert!(error.contains("kernels"), "{error}");
    }
}
