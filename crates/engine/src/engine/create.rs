//! Functions of an adapter (requirement X1): creating them, and what they use.

use super::Engine;
use crate::verbs::function::Function;
use ironwarp_rnic::quota::{Quotas, Resource};
use std::io;
use std::sync::Arc;

impl Engine {
    /// Creates a function with these quotas: a part of this adapter with objects of its own. It is used like an adapter,
    /// and shares the lanes of this one, which it keeps open. Fails for a function, and if too few tags are unused.
    pub fn create_function(&self, quotas: Quotas) -> io::Result<Arc<Self>> {
        if self.function_number() != 0 {
            let why = format!(
                "function {} cannot create functions: create them with the adapter",
                self.function_number()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.check_running()?;
        let device = self.device().create_function(quotas).map_err(io::Error::other)?;
        let function = Function::new(device);
        function.set_lanes(self.steering().lanes());
        function.stop_alone(self.steering());
        self.shared.functions.add(&function);
        self.steering().add_function(function.device());
        self.check_running()?; // after it was added: a shutdown that this does not find ends the function
        Ok(Arc::new(Self::with_function(Arc::clone(&self.shared), function)))
    }

    /// Returns the number of the function: zero for the adapter itself.
    pub fn function_number(&self) -> u32 {
        self.function.number()
    }

    /// Returns the quotas of the function.
    pub fn quotas(&self) -> &Quotas {
        self.device().account().quotas()
    }

    /// Returns how much of a kind of resource the function uses.
    pub fn used(&self, resource: Resource) -> u64 {
        self.device().used(resource)
    }
}
