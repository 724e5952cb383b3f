//! Functions of one and two elements, written once: whatever loop they are put into, over a matrix of its
//! own or in place behind another operation, computes the same bits.

/// `√(2/π)`, of the tanh form of gelu.
pub(super) const GELU_SCALE: f32 = 0.797_884_6;
pub(super) const GELU_CUBE: f32 = 0.044_715;

/// Calls a loop with a [`Unary`](crate::op::Unary) as its last argument.
macro_rules! with_unary {
    ($function:expr, $loop:ident($($argument:expr),*)) => {{
        use $crate::ops::functions::{GELU_CUBE, GELU_SCALE};
        use zillion_device::simd::math;
        match $function {
            // Written so that a NaN stays one.
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

/// Calls a loop with the function of (gradient, point) that a unary's gradient is. The point is the unary's
/// result where [`Unary::uses_result`](crate::op::Unary::uses_result), else its argument.
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

/// Calls a loop with a [`Binary`](crate::op::Binary) as its last argument.
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
