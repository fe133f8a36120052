"""What the bug zoos share: a strategy whose program gets one fault after it was built."""

from dataclasses import fields


class Seeded:
    """Put before a strategy in a frozen dataclass with the fields ``cause``, ``block``, ``layer``.

    sound : the strategy. causes : {cause: what has ``spoil(program, layer's module)``}. no_layer :
    places outside of the layers.
    """

    sound, causes, no_layer = None, {}, ()

    @property
    def place(self):
        """The name of the layer that is wrong, or one of ``no_layer``."""
        return self.layer if self.layer in self.no_layer else f"blocks.{self.block}.{self.layer}"

    @property
    def healthy(self):
        """The same strategy without the fault."""
        return self.sound(**{f.name: getattr(self, f.name) for f in fields(self.sound)})

    def find(self, program):
        """The module that is wrong, None on a rank that does not have it."""
        return dict(program.module.named_modules()).get(self.place)

    def build(self, *args, **options):
        """The rank's program, with the fault in it."""
        program = super().build(*args, **options)
        layer = self.find(program)
        if layer is not None or self.place in self.no_layer:
            self.causes[self.cause].spoil(program, layer)
        return program
