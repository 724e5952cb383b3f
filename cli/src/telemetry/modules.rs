//! The names of modules that a directive of the log may contain.
//!
//! The parser of filters accepts any word as the name of a module. A misspelt name would match
//! nothing, and the expected events would be missing without notice. The modules of this program
//! are known when it is built. So the first part of a module's path is compared with a list.

use zillion_config::nearest;

/// The names of the crates of this workspace.
const OURS: &str = "\
zillion, zillion_bench, zillion_config, zillion_console, zillion_datatools, zillion_device, zillion_embedding, \
zillion_feature, zillion_nn, zillion_ps, zillion_reader, zillion_registry, zillion_rows, zillion_scorer, \
zillion_serving, zillion_store, zillion_trainer";

/// The names of the other crates that write events or spans.
const OTHERS: &str = "\
axum, h2, hyper, hyper_util, object_store, opentelemetry, opentelemetry_otlp, opentelemetry_sdk, reqwest, tokio, \
tonic, tower";

/// Returns a description of the mistake if no module of this name logs anything, otherwise `None`.
pub(super) fn find_problem(module: &str) -> Option<String> {
    let name = module.split("::").next().unwrap_or(module);
    let known = || OURS.split(", ").chain(OTHERS.split(", ")).chain([super::TRACES]);
    if known().any(|known| known == name) {
        return None;
    }
    let hint = match nearest(name, known()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("the modules that log are {OURS}, and of other projects {OTHERS}"),
    };
    Some(format!("no module `{name}` logs anything; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_log_are_known_and_others_are_told_what_was_meant() {
        for good in
            ["zillion", "zillion_serving", "zillion_serving::http::route", "hyper", "zillion_trace"]
        {
            assert_eq!(find_problem(good), None);
        }
        let said = find_problem("zillion_servng::http").unwrap();
        assert!(said.contains("`zillion_servng`") && said.contains("`zillion_serving`?"), "{said}");
        let said = find_problem("warp").unwrap();
        assert!(said.contains("`warp`") && said.contains("zillion_trainer"), "{said}");
    }
}
