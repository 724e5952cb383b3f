//! Tests of the settings that a spec allows, and of the sizes that follow from them.

use super::*;

fn spec(dense: bool) -> TableSpec {
    let segment = |name: &str, dim| {
        SegmentSpec::new(
            name,
            dim,
            InitializerSpec::Constant { value: 0.0 },
            OptimizerSpec::Sgd { lr: 0.1 },
        )
    };
    TableSpec {
        dense,
        seed: 1,
        ..TableSpec::new("ids", vec![segment("vector", 10), segment("linear", 1)])
    }
}

fn span(text: &str) -> EventSpan {
    text.parse().unwrap()
}

#[test]
fn segments_follow_each_other_and_the_stride_is_sixteen_bytes() {
    let layout = spec(false).layout();
    assert_eq!(layout.stride, 12);
    assert_eq!(layout.width(), 11);
    assert_eq!(layout.segment("linear").map(|s| (s.offset, s.dim)), Some((10, 1)));
    assert_eq!(layout.segment("none"), None);
    assert_eq!(spec(false).companion_stride(), 4);
}

#[test]
fn scopes_follow_the_kind_of_table_unless_the_job_says_otherwise() {
    let mut table = spec(true);
    assert!(!table.has_whole_table_rule());
    table.segments[0].l2 = 0.1;
    assert!(table.has_whole_table_rule());
    table.segments[0].l2_scope = Some(Scope::Touched);
    assert!(!table.has_whole_table_rule());
    table.segments[1].optimizer = OptimizerSpec::adam(0.1);
    assert!(table.has_whole_table_rule());
    table.dense = false;
    assert!(!table.has_whole_table_rule());
    assert!(table.validate().is_ok());
}

#[test]
fn bad_settings_are_refused_with_their_key_and_a_remedy() {
    type Change = fn(&mut TableSpec);
    let cases: &[(bool, Change, &str)] = &[
        (false, |t| t.name = "a/b".into(), "tables.a/b.name"),
        (false, |t| t.name = "..".into(), "must not begin with a dot"),
        (false, |t| t.segments.clear(), "at least one segment"),
        (false, |t| t.max_rows = Some(0), "tables.ids.max_rows"),
        (true, |t| t.max_bytes = Some(ByteSize(1 << 30)), "limited by `max_rows`"),
        (false, |t| t.max_bytes = Some(ByteSize(1 << 10)), "at least 262144 bytes"),
        (false, |t| t.pinned = vec![PinnedId::Number(1)], "set an `eviction`"),
        (
            false,
            |t| t.statistics = Some(UseStatistics::by_steps(0.0, 1)),
            "tables.ids.statistics.decay",
        ),
        (true, |t| t.statistics = Some(UseStatistics::by_steps(0.5, 1)), "tables.ids.statistics"),
        (
            false,
            |t| {
                t.eviction = Eviction::Score {
                    show_weight: 1.0,
                    click_weight: 1.0,
                    below: None,
                    every: None,
                }
            },
            "`statistics = {",
        ),
        (
            false,
            |t| t.eviction = Eviction::L2 { below: None, every: Some(9) },
            "tables.ids.eviction.every",
        ),
        (
            false,
            |t| t.eviction = Eviction::L2 { below: Some(f64::NAN), every: None },
            "tables.ids.eviction.below",
        ),
        (
            false,
            |t| t.eviction = Eviction::Lfu { half_life: Span::Steps(0), below: None, every: None },
            "tables.ids.eviction.half_life",
        ),
        (false, |t| t.admission = Admission::Probability { p: 0.0 }, "admission.p"),
        (
            false,
            |t| t.admission = Admission::Bloom { at_least: 256, keys: 9, error: 0.1 },
            "admission.at_least",
        ),
        (
            false,
            |t| t.admission = Admission::Bloom { at_least: 2, keys: 9, error: 0.0 },
            "admission.error",
        ),
        (true, |t| t.max_rows = Some(0), "must be between 1"),
        (true, |t| t.admission = Admission::Count { at_least: 2 }, "tables.ids.admission"),
        (false, |t| t.admission = Admission::Count { at_least: 0 }, "admission.at_least"),
        (false, |t| t.admission = Admission::Count { at_least: 4097 }, "1 and 4096"),
        (true, |t| t.eviction = Eviction::Unseen { steps: 9 }, "kind = \"never\""),
        (false, |t| t.eviction = Eviction::Unseen { steps: 0 }, "tables.ids.eviction.steps"),
        (false, |t| t.admission_window = Some(span("1 day")), "tables.ids.admission_window"),
        (
            false,
            |t| {
                t.eviction = Eviction::Unseen { steps: 9 };
                t.statistics =
                    Some(UseStatistics { decay: 0.5, period: Span::EventTime(span("1 day")) });
            },
            "tables.ids.eviction.steps",
        ),
        (
            false,
            |t| {
                t.eviction = Eviction::UnseenFor { span: span("7 days") };
                t.statistics = Some(UseStatistics::by_steps(0.5, 10));
            },
            "`every = \"1 day\"`",
        ),
        (false, |t| t.segments[1].name = "vector".into(), "names of the other segments"),
        (false, |t| t.segments[0].dim = 0, "tables.ids.vector.dim"),
        (false, |t| t.segments[0].l2 = -1.0, "tables.ids.vector.l2"),
        (false, |t| t.segments[0].l2_scope = Some(Scope::Table), "`l2_scope = \"touched\"`"),
        (
            false,
            |t| {
                t.segments[0].optimizer = OptimizerSpec::Adam {
                    lr: 0.1,
                    beta1: 0.9,
                    beta2: 0.999,
                    eps: 1e-8,
                    scope: Some(Scope::Table),
                };
            },
            "`scope = \"touched\"` for lazy Adam",
        ),
        (
            false,
            |t| {
                t.segments[0].optimizer = OptimizerSpec::Momentum {
                    lr: 0.1,
                    momentum: 0.9,
                    nesterov: false,
                    scope: Some(Scope::Table),
                };
            },
            "`scope = \"touched\"` for lazy momentum",
        ),
        (
            true,
            |t| {
                t.segments[0].l2 = 0.1;
                t.segments[0].optimizer = OptimizerSpec::Momentum {
                    lr: 0.1,
                    momentum: 0.9,
                    nesterov: false,
                    scope: Some(Scope::Touched),
                };
            },
            "so momentum cannot be lazy here",
        ),
        (
            false,
            |t| {
                t.segments[0].optimizer = OptimizerSpec::Momentum {
                    lr: 0.1,
                    momentum: 1.0,
                    nesterov: false,
                    scope: None,
                };
            },
            "tables.ids.vector.optimizer.momentum",
        ),
        (
            false,
            |t| {
                t.segments[0].optimizer =
                    OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.0, l2: 0.0, l21: -1.0 };
            },
            "tables.ids.vector.optimizer.l21",
        ),
        (
            false,
            |t| t.segments[1].clip = Some(ClipSpec { norm: None, value: None }),
            "`tables.ids.linear.clip`: needs `norm`, `value` or both",
        ),
        (
            false,
            |t| t.segments[1].clip = Some(ClipSpec { norm: Some(0.0), value: None }),
            "tables.ids.linear.clip.norm",
        ),
        (
            false,
            |t| t.segments[1].clip = Some(ClipSpec { norm: None, value: Some(f32::NAN) }),
            "tables.ids.linear.clip.value",
        ),
        (
            false,
            |t| t.segments[0].bounds = Some(Bounds { low: 1.0, high: 0.5 }),
            "tables.ids.vector.bounds",
        ),
        (
            false,
            |t| t.segments[0].bounds = Some(Bounds { low: 0.0, high: f32::INFINITY }),
            "[0.0, 3e38]",
        ),
        (
            true,
            |t| t.segments[0].optimizer = OptimizerSpec::Sgd { lr: f32::NAN },
            "tables.ids.vector.optimizer.lr",
        ),
        (
            true,
            |t| t.segments[0].initializer = InitializerSpec::Uniform { low: 1.0, high: 0.0 },
            "tables.ids.vector.initializer.high",
        ),
    ];
    for (dense, change, expected) in cases {
        let mut table = spec(*dense);
        change(&mut table);
        let message = table.validate().expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
    }
}
