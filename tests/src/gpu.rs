//! Tests of the commands for a GPU, on a machine that need not have one.

use serde_json::Value;

use crate::harness::{Workplace, stderr, stdout, zillion};

/// Returns whether this machine has a driver, so that a GPU may be there.
fn has_driver() -> bool {
    std::path::Path::new("/proc/driver/nvidia/version").exists()
}

#[test]
fn a_missing_driver_is_named() {
    if has_driver() {
        return;
    }
    for args in [
        &["gpu", "check", "--small"][..],
        &["gpu", "check", "--device", "cuda:0", "--json"],
        &["bench", "gpu", "--json"],
    ] {
        let output = zillion(args).output().expect("the binary runs");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("libcuda.so.1") && text.contains("install driver"), "{text}");
        assert!(!text.contains("panicked"), "{text}");
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_wrong_device_is_named() {
    for device in ["gpu0", "cuda:one", "rocm:0"] {
        let output =
            zillion(&["gpu", "check", "--device", device]).output().expect("the binary runs");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("`{device}`")) && text.contains("cuda:0"), "{text}");
    }
}

#[test]
fn a_missing_compiler_is_named() {
    let place = Workplace::new();
    let folder = place.text("kernels");
    let output = zillion(&["gpu", "compile", "--arch", "sm_90", "--out", &folder])
        .output()
        .expect("the binary runs");
    // On a machine with the compiler, the kernels are there.
    if output.status.success() {
        let files = std::fs::read_dir(&folder).expect("the folder");
        assert!(files.count() > 1);
        return;
    }
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("libnvrtc.so.13") && text.contains("install"), "{text}");
}

#[test]
fn the_doctor_lists_the_libraries() {
    let place = Workplace::new();
    let folder = place.text("");
    let output = zillion(&["doctor", "--dir", &folder, "--disk-mib", "1", "--json"]).output();
    let output = output.expect("the binary runs");
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"] {
        let findings = report["findings"].as_array().expect("a list");
        let finding = findings.iter().find(|f| f["what"] == name).expect("a library");
        let found = finding["found"].as_str().expect("a text");
        assert!(found.contains('/') || found.contains("not found"), "{finding}");
    }
}
