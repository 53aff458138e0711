//! Seeded randomness: SplitMix64, four lines, so that a run is the same on every machine and with every dependency.

/// A stream of numbers that its seed determines wholly.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// A stream; different `stream` numbers of one seed are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self { state: mix(seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407)) }
    }

    /// The next 64 bits. Never repeats within a stream: a counter through a bijection.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number in `0..bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product: even enough for bounds far below 2^64.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True with the given probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
