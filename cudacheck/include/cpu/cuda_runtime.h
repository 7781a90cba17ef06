// On the CPU everything is in device.h, which stands before every kernel.
