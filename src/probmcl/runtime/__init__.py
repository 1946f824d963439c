"""Where and how tensors are computed: device, processes, precision, memory."""
