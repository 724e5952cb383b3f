//! Functions of one and two elements. Each function is written only once, and all loops use it, so
//! all of them compute the same bits. A loop may run over a separate matrix, or in place after
//! another operation.

use crate::graph::op::{Binary, Unary};
use crate::onnx::emit::Emitter;
use crate::onnx::lists::divide_or_zero;
use crate::onnx::proto::AttributeProto;

/// The constant `√(2/π)` in the tanh form of gelu.
pub(super) const GELU_SCALE: f32 = 0.797_884_6;
pub(super) const GELU_CUBE: f32 = 0.044_715;

impl Unary {
    /// Returns `true` if the derivative is computed from the result of the function, and `false` if
    /// it is computed from the argument.
    pub fn uses_result(self) -> bool {
        matches!(
            self,
            Self::Relu | Self::Sigmoid | Self::Tanh | Self::Sqrt | Self::Exp | Self::Scale { .. }
        )
    }

    /// Returns the names of the function and of its gradient.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Relu => ("relu", "relu_grad"),
            Self::LeakyRelu { .. } => ("leaky_relu", "leaky_relu_grad"),
            Self::Sigmoid => ("sigmoid", "sigmoid_grad"),
            Self::Tanh => ("tanh", "tanh_grad"),
            Self::Gelu => ("gelu", "gelu_grad"),
            Self::Silu => ("silu", "silu_grad"),
            Self::Softplus => ("softplus", "softplus_grad"),
            Self::Square => ("square", "square_grad"),
            Self::Sqrt => ("sqrt", "sqrt_grad"),
            Self::Exp => ("exp", "exp_grad"),
            Self::Ln => ("ln", "ln_grad"),
            Self::Scale { .. } => ("scale", "scale_grad"),
            Self::Offset { .. } => ("offset", "offset_grad"),
        }
    }

    /// Writes the function of `x` as ONNX and returns the name of its value.
    pub(super) fn to_onnx(self, e: &mut Emitter, x: &str) -> String {
        match self {
            Self::Relu => e.op("Relu", &[x], vec![]),
            Self::LeakyRelu { slope } => {
                e.op("LeakyRelu", &[x], vec![AttributeProto::float("alpha", slope)])
            }
            Self::Sigmoid => e.op("Sigmoid", &[x], vec![]),
            Self::Tanh => e.op("Tanh", &[x], vec![]),
            Self::Softplus => e.op("Softplus", &[x], vec![]),
            Self::Square => e.op("Mul", &[x, x], vec![]),
            Self::Sqrt => e.op("Sqrt", &[x], vec![]),
            Self::Exp => e.op("Exp", &[x], vec![]),
            Self::Ln => e.op("Log", &[x], vec![]),
            Self::Scale { by } => {
                let by = e.float(by);
                e.op("Mul", &[x, &by], vec![])
            }
            Self::Offset { by } => {
                let by = e.float(by);
                e.op("Add", &[x, &by], vec![])
            }
            Self::Silu => {
                let share = e.op("Sigmoid", &[x], vec![]);
                e.op("Mul", &[x, &share], vec![])
            }
            Self::Gelu => {
                let (scale, cube) = (e.float(GELU_SCALE), e.float(GELU_CUBE));
                let (half, one) = (e.float(0.5), e.float(1.0));
                let square = e.op("Mul", &[x, x], vec![]);
                let third = e.op("Mul", &[&square, x], vec![]);
                let third = e.op("Mul", &[&third, &cube], vec![]);
                let inner = e.op("Add", &[x, &third], vec![]);
                let inner = e.op("Mul", &[&inner, &scale], vec![]);
                let tanh = e.op("Tanh", &[&inner], vec![]);
                let share = e.op("Add", &[&tanh, &one], vec![]);
                let share = e.op("Mul", &[&share, &half], vec![]);
                e.op("Mul", &[x, &share], vec![])
            }
        }
    }
}

impl Binary {
    /// Returns the name of the function.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::SafeDiv => "safe_div",
        }
    }

    /// Writes the function of `a` and `b` as ONNX and returns the name of its value.
    pub(super) fn to_onnx(self, e: &mut Emitter, a: &str, b: &str) -> String {
        let op_type = match self {
            Self::Add => "Add",
            Self::Sub => "Sub",
            Self::Mul => "Mul",
            Self::Div => "Div",
            Self::SafeDiv => return divide_or_zero(e, a, b),
        };
        e.op(op_type, &[a, b], vec![])
    }
}

/// Calls a loop with a [`Unary`](crate::graph::op::Unary) as its last argument.
macro_rules! with_unary {
    ($function:expr, $loop:ident($($argument:expr),*)) => {{
        use $crate::ops::functions::{GELU_CUBE, GELU_SCALE};
        use zillion_device::simd::math;
        match $function {
            // With this form of the comparison, a NaN stays a NaN.
            Unary::Relu => simd!({ $loop($($argument,)* |x| if x < 0.0 { 0.0 } else { x }) }),
            Unary::LeakyRelu { slope } => {
                simd!({ $loop($($argument,)* |x| if x > 0.0 { x } else { slope * x }) })
            }
            Unary::Sigmoid => simd!({ $loop($($argument,)* math::sigmoid) }),
            Unary::Tanh => simd!({ $loop($($argument,)* math::tanh) }),
            Unary::Gelu => simd!({
                $loop($($argument,)* |x| {
                    let inner = GELU_SCALE * (x + GELU_CUBE * x * x * x);
                    0.5 * x * (1.0 + math::tanh(inner))
                })
            }),
            Unary::Silu => simd!({ $loop($($argument,)* |x| x * math::sigmoid(x)) }),
            Unary::Softplus => simd!({ $loop($($argument,)* math::log1p_exp) }),
            Unary::Square => simd!({ $loop($($argument,)* |x| x * x) }),
            Unary::Sqrt => simd!({ $loop($($argument,)* f32::sqrt) }),
            Unary::Exp => simd!({ $loop($($argument,)* math::exp) }),
            Unary::Ln => simd!({ $loop($($argument,)* math::ln) }),
            Unary::Scale { by } => simd!({ $loop($($argument,)* |x| by * x) }),
            Unary::Offset { by } => simd!({ $loop($($argument,)* |x| x + by) }),
        }
    }};
}

/// Calls a loop with the gradient of a unary function. The gradient is a function of two arguments:
/// the gradient of the result, and a point. The point is the result of the function if
/// [`Unary::uses_result`](crate::graph::op::Unary::uses_result), and otherwise its argument.
macro_rules! with_unary_grad {
    ($function:expr, $loop:ident($($argument:expr),*)) => {{
        use $crate::ops::functions::{GELU_CUBE, GELU_SCALE};
        use zillion_device::simd::math;
        match $function {
            Unary::Relu => {
                simd!({ $loop($($argument,)* |g, y| if y > 0.0 { g } else { 0.0 }) })
            }
            Unary::LeakyRelu { slope } => {
                simd!({ $loop($($argument,)* |g, x| if x > 0.0 { g } else { slope * g }) })
            }
            Unary::Sigmoid => simd!({ $loop($($argument,)* |g, y| g * y * (1.0 - y)) }),
            Unary::Tanh => simd!({ $loop($($argument,)* |g, y| g * (1.0 - y * y)) }),
            Unary::Gelu => simd!({
                $loop($($argument,)* |g, x| {
                    let inner = GELU_SCALE * (x + GELU_CUBE * x * x * x);
                    let tanh = math::tanh(inner);
                    let slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * x * x);
                    g * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
                })
            }),
            Unary::Silu => simd!({
                $loop($($argument,)* |g, x| {
                    let s = math::sigmoid(x);
                    g * s * (1.0 + x * (1.0 - s))
                })
            }),
            Unary::Softplus => simd!({ $loop($($argument,)* |g, x| g * math::sigmoid(x)) }),
            Unary::Square => simd!({ $loop($($argument,)* |g, x| 2.0 * g * x) }),
            Unary::Sqrt => simd!({ $loop($($argument,)* |g, y| 0.5 * g / y) }),
            Unary::Exp => simd!({ $loop($($argument,)* |g, y| g * y) }),
            Unary::Ln => simd!({ $loop($($argument,)* |g, x| g / x) }),
            Unary::Scale { by } => simd!({ $loop($($argument,)* |g, _| by * g) }),
            Unary::Offset { .. } => simd!({ $loop($($argument,)* |g, _| g) }),
        }
    }};
}

/// Calls a loop with a [`Binary`](crate::graph::op::Binary) as its last argument.
macro_rules! with_binary {
    ($function:expr, $loop:ident($($argument:expr),*)) => {
        match $function {
            Binary::Add => simd!({ $loop($($argument,)* |a, b| a + b) }),
            Binary::Sub => simd!({ $loop($($argument,)* |a, b| a - b) }),
            Binary::Mul => simd!({ $loop($($argument,)* |a, b| a * b) }),
            Binary::Div => simd!({ $loop($($argument,)* |a, b| a / b) }),
            Binary::SafeDiv => {
                simd!({ $loop($($argument,)* |a, b| if b == 0.0 { 0.0 } else { a / b }) })
            }
        }
    };
}

pub(super) use {with_binary, with_unary, with_unary_grad};
