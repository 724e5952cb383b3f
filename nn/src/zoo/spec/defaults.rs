//! What the keys of a model are where the job says nothing.

use super::*;

const DEFAULT_HIDDEN: [usize; 3] = [64; 3];
const DIN_HIDDEN: [usize; 2] = [200, 80];
const DIN_UNIT_HIDDEN: [usize; 2] = [80, 40];
const DEFAULT_CROSS_LAYERS: usize = 3;
const DEFAULT_BOTTOM: [usize; 2] = [128, 64];
const DEFAULT_TOWER: [usize; 1] = [32];
const DEFAULT_EXPERTS: usize = 4;

impl Default for ShallowSpec {
    fn default() -> Self {
        Self { bias: true, l2: 0.0 }
    }
}

impl Default for DeepSpec {
    fn default() -> Self {
        let activation = Activation::default();
        Self { hidden: DEFAULT_HIDDEN.into(), activation, batch_norm: false, dropout: 0.0, l2: 0.0 }
    }
}

impl Default for WideDeepSpec {
    fn default() -> Self {
        let DeepSpec { hidden, activation, batch_norm, dropout, l2 } = DeepSpec::default();
        Self { hidden, activation, batch_norm, dropout, bias: false, l2 }
    }
}

impl Default for CrossSpec {
    fn default() -> Self {
        let DeepSpec { hidden, activation, batch_norm, dropout, l2 } = DeepSpec::default();
        let (cross_layers, structure) = (DEFAULT_CROSS_LAYERS, Structure::default());
        Self { cross_layers, structure, hidden, activation, batch_norm, dropout, l2 }
    }
}

impl Default for CrossV2Spec {
    fn default() -> Self {
        let CrossSpec { cross_layers, structure, hidden, activation, batch_norm, dropout, l2 } =
            CrossSpec::default();
        let low_rank = None;
        Self { cross_layers, low_rank, structure, hidden, activation, batch_norm, dropout, l2 }
    }
}

impl Default for DlrmSpec {
    fn default() -> Self {
        let DeepSpec { hidden, activation, batch_norm, dropout, l2 } = DeepSpec::default();
        Self {
            interaction: Interaction::default(),
            bottom: None,
            bottom_dropout: 0.0,
            hidden,
            activation,
            batch_norm,
            dropout,
            l2,
        }
    }
}

impl Default for DinSpec {
    fn default() -> Self {
        let DeepSpec { activation, batch_norm, dropout, l2, .. } = DeepSpec::default();
        Self {
            attention: Vec::new(),
            attention_hidden: DIN_UNIT_HIDDEN.into(),
            attention_activation: Activation::Sigmoid,
            softmax: false,
            hidden: DIN_HIDDEN.into(),
            activation,
            batch_norm,
            dropout,
            wide: false,
            fm: false,
            l2,
        }
    }
}

impl Default for SharedBottomSpec {
    fn default() -> Self {
        let DeepSpec { activation, batch_norm, dropout, l2, .. } = DeepSpec::default();
        let (bottom, tower) = (DEFAULT_BOTTOM.into(), DEFAULT_TOWER.into());
        Self { bottom, tower, activation, batch_norm, dropout, l2 }
    }
}

impl Default for MmoeSpec {
    fn default() -> Self {
        let SharedBottomSpec { bottom, tower, activation, batch_norm, dropout, l2 } =
            SharedBottomSpec::default();
        let experts = DEFAULT_EXPERTS;
        Self { experts, expert: bottom, tower, activation, batch_norm, dropout, l2 }
    }
}

impl Default for EsmmSpec {
    fn default() -> Self {
        let DeepSpec { hidden, activation, batch_norm, dropout, l2 } = DeepSpec::default();
        Self { hidden, activation, batch_norm, dropout, l2 }
    }
}

impl Default for TwoTowerSpec {
    fn default() -> Self {
        let DeepSpec { activation, batch_norm, dropout, l2, .. } = DeepSpec::default();
        Self {
            user: Vec::new(),
            item: Vec::new(),
            item_id: None,
            hidden: Vec::new(),
            dim: 64,
            temperature: 0.1,
            normalise: true,
            sampling_correction: true,
            activation,
            batch_norm,
            dropout,
            l2,
        }
    }
}
