# Plans by trying: always the bed that has the fewest crops left, and back where none is left.
use strict;
use warnings;

my @crops = qw(beans chard leeks squash);
my (%near, %may, %plan);
my %left = map { $_ => 9 } @crops;
for my $side (qw(N E S W)) { $may{"$side$_"} = [@crops] for 1 .. 9 }
open my $file, '<', '/app/beds.txt' or die $!;
while (<$file>) {
    if (/^(\w+) = (\w+)$/) { $may{$1} = [$2] }
    elsif (/^(\w+) (\w+)$/) { $near{$1}{$2} = $near{$2}{$1} = 1 }
}

sub crops_for {
    my ($bed) = @_;
    my %taken = map { $plan{$_} // '' => 1 } keys %{ $near{$bed} };
    return grep { $left{$_} && !$taken{$_} } @{ $may{$bed} };
}

sub fill {
    my @open = grep { !$plan{$_} } sort keys %may or return 1;
    my %choices = map { $_ => [crops_for($_)] } @open;
    my ($bed) = sort {
        @{ $choices{$a} } <=> @{ $choices{$b} } || keys %{ $near{$b} } <=> keys %{ $near{$a} } || $a cmp $b
    } @open;
    for my $crop (sort { $left{$b} <=> $left{$a} || $a cmp $b } @{ $choices{$bed} }) {
        $plan{$bed} = $crop;
        $left{$crop}--;
        return 1 if fill();
        delete $plan{$bed};
        $left{$crop}++;
    }
    return 0;
}

fill() or die "there is no plan\n";
open my $out, '>', '/app/plan.txt' or die $!;
print {$out} "$_ $plan{$_}\n" for sort keys %may;
close $out or die $!;
